"""Which events count where retention has removed the beginning of a journal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.trainer.query.timeline import valid_events
from tests.trainer import journals


def rounds(first: int, last: int) -> Iterator[journals.Told]:
    for round_ in range(first, last + 1):
        yield journals.round_started(round_)
        for epoch in (1, 2, 3):
            yield journals.epoch(round_, epoch)
            filler = random.Random(10 * round_ + epoch).randbytes(900).hex()
            yield ev.LogLine(level="INFO", logger="x", message=filler), journals.at(round_, epoch)
        yield journals.round_finished(round_)


def test_no_epoch_counts_twice_after_its_start_was_removed(tmp_path: Path) -> None:
    told = [journals.started("b1"), *rounds(1, 6), journals.started("b2", resumed_round=3), *rounds(4, 8)]
    run = journals.write_run(tmp_path, "alpha", told, JournalLimits(segment_bytes=8_000, keep_bytes=24_000))
    run.release()
    held = list(read(run.events))
    assert [event.data.boot for event in held if event.type == "run.started"] == ["b2"]
    assert held[0].type != "run.started", "some of the first boot is held"
    epochs = [event for event in valid_events(run.events, DamageReport()) if event.type == "epoch"]
    clocks = [(event.ctx.round, event.ctx.epoch) for event in epochs]
    assert clocks == [(round_, epoch) for round_ in range(4, 9) for epoch in (1, 2, 3)]
