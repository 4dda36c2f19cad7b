"""Lives of seeds that are kept: the same as those computed anew, whatever later boots play again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages.events import spec_of
from esper_overwatch.trainer.query.database import Database
from esper_overwatch.trainer.query.seed_cache import SeedCache
from tests.batches import batch_of
from tests.trainer.journals import BEGIN, Told, started

from .test_seed_view import lives_of, random_round

ALL = "SELECT * EXCLUDE (parameters) FROM seeds"


def write(path: Path, told: Iterable[Told]) -> None:
    """Append events to a journal of small segments, which are compressed at the end."""
    journal = Journal(path, JournalLimits(segment_bytes=15_000))
    seq = {"life": 0, "metric": 0} | dict(journal.last)
    for event, ctx in told:
        stream = spec_of(type(event)).stream
        seq[stream] += 1
        journal.append([batch_of(seq[stream], BEGIN + sum(seq.values()), ctx, event)])
    journal.close()


def rounds(random_: random.Random, first: int, last: int) -> list[Told]:
    return [one for round_ in range(first, last + 1) for one in random_round(random_, round_)]


def computed(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The files that a query writes, and the lives it tells."""
    written: list[str] = []
    write_file = SeedCache._write

    def watched(self: SeedCache, file: Path, table: Any) -> None:
        written.append(file.name)
        write_file(self, file, table)

    with monkeypatch.context() as patch:
        patch.setattr(SeedCache, "_write", watched)
        return written, Database(path).ask(ALL).rows


def kept(path: Path) -> set[str]:
    return {file.name for file in (path.parent / "cache").glob("query-*/seeds/*.parquet")}


def test_a_settled_round_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, random_ = tmp_path / "events.jsonl", random.Random(3)
    write(path, [started("b1"), *rounds(random_, 1, 12)])
    first, rows = computed(path, monkeypatch)
    assert len(first) >= 3
    assert rows == lives_of(path)
    assert computed(path, monkeypatch) == ([], rows)
    write(path, rounds(random_, 13, 18))
    new, rows = computed(path, monkeypatch)
    assert new
    assert kept(path) == {*first, *new}, "what was settled stays"
    assert rows == lives_of(path)


@pytest.mark.slow
def test_a_boot_that_goes_back_unsettles_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, random_ = tmp_path / "events.jsonl", random.Random(4)
    write(path, [started("b1"), *rounds(random_, 1, 12)])
    before, _ = computed(path, monkeypatch)
    write(path, [started("b2", resumed_round=6), *rounds(random_, 7, 16)])
    new, rows = computed(path, monkeypatch)
    assert rows == lives_of(path)
    assert set(before) - kept(path), "lives that were undone are thrown away"
    assert set(before) & kept(path), "earlier ones stay"
    assert not set(new) & set(before)


@pytest.mark.parametrize("seed", range(2))
def test_lives_are_those_of_the_rules_however_it_went(seed: int, tmp_path: Path) -> None:
    path, random_ = tmp_path / "events.jsonl", random.Random(seed)
    next_round = 1
    write(path, [started("b0")])
    for boot in range(1, 5):
        last = next_round + random_.randint(0, 7)
        write(path, rounds(random_, next_round, last))
        if random_.random() < 0.7:
            assert Database(path).ask(ALL).rows == lives_of(path)
        next_round = random_.randint(max(1, last - 8), last + 1)
        write(path, [started(f"b{boot}", resumed_round=next_round - 1)])
        if random_.random() < 0.3:
            assert Database(path).ask(ALL).rows == lives_of(path)
    assert kept(path)


@pytest.mark.slow
def test_segments_that_retention_takes_leave_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [started("b1"), *rounds(random.Random(5), 1, 20)])
    before, rows = computed(path, monkeypatch)
    oldest = sorted((tmp_path / "segments").glob("*.zst"))[0]
    oldest.unlink()
    new, left = computed(path, monkeypatch)
    assert len(new) <= 2 < len(before), "the rounds at the edge alone are computed again"
    assert [life[:7] for life in left] == [life[:7] for life in rows[-len(left) :]]
    assert 0 < len(left) < len(rows)


def test_a_disk_that_refuses_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [started("b1"), *rounds(random.Random(6), 1, 10)])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SeedCache, "_write", refuse)
    assert Database(path).ask(ALL).rows == lives_of(path)
    assert not kept(path)


@pytest.mark.slow
def test_damaged_file_of_seeds_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [started("b1"), *rounds(random.Random(3), 1, 12)])
    _, rows = computed(path, monkeypatch)
    damaged = sorted((tmp_path / "cache").glob("query-*/seeds/*.parquet"))[0]
    os.truncate(damaged, damaged.stat().st_size // 2)
    assert computed(path, monkeypatch) == ([damaged.name], rows)
    assert computed(path, monkeypatch) == ([], rows)
