"""A damaged journal: replay, query and export say the same, and give what is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import spec_of
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.trainer.config.schema import Config
from tests.batches import batch_of
from tests.trainer.command import esper
from tests.trainer.journals import BEGIN, at, epoch, round_started, started

NUM_EPOCHS = 60


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of the run alpha: two segments, each of many frames, and a hot one."""
    monkeypatch.setattr("esper_overwatch.protocol.journal.compactor.FRAME_BYTES", 2_500)
    run = RunFolder.claim("alpha")
    (run.path / "config.json").write_bytes(msgspec.json.encode(Config(episode_epochs=NUM_EPOCHS)))
    journal, seq = Journal(run.events, JournalLimits(segment_bytes=15_000)), {"life": 0, "metric": 0}
    for event, ctx in [started("b1"), round_started(1), *(epoch(1, n) for n in range(1, NUM_EPOCHS + 1))]:
        stream = spec_of(type(event)).stream
        seq[stream] += 1
        journal.append([batch_of(seq[stream], BEGIN + sum(seq.values()), ctx, event)])
    journal.append([batch_of(3, BEGIN + 999, at(1, NUM_EPOCHS), ev.Mark(text="x", client="y"))])
    journal.close()
    run.release()
    assert len(SegmentFolder(run.events).numbers()) >= 2
    return run.events


def flip(journal: Path) -> list[int]:
    """Change a byte in the middle of a segment; the numbers of the epochs that are lost."""
    folder = SegmentFolder(journal)
    index = folder.index(1)
    assert index is not None
    assert len(index.frames) >= 4
    before = {event.seq for event in read(journal) if event.stream == "metric"}
    content = bytearray(folder.packed(1).read_bytes())
    content[index.frames[2][1] + 40] ^= 1
    folder.packed(1).write_bytes(content)
    after = {e.seq for e in read(journal, on_bad=lambda *_: None) if e.stream == "metric"}
    lost = sorted(before - after)
    assert 0 < len(lost) < 10, "of one frame"
    return lost


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("replay", "alpha", "--json"), lambda out, _: out.count('"type":"epoch"')),
        (("replay", "alpha", "--stream", "metric", "--json"), lambda out, _: out.count('"type":"epoch"')),
        (
            ("query", "alpha", "SELECT count(DISTINCT epoch) AS n FROM epochs", "--json"),
            lambda out, _: json.loads(out)[0]["n"],
        ),
        (
            ("export", "alpha", "--to", "OUT", "--format", "parquet", "--json"),
            lambda out, _: json.loads(out)["rows"]["epoch"],
        ),
        (
            ("export", "alpha", "--to", "OUT", "--format", "tensorboard", "--json"),
            lambda out, whole: json.loads(out)["scalars"] * NUM_EPOCHS // json.loads(whole)["scalars"],
        ),
        pytest.param(
            ("export", "alpha", "--to", "OUT", "--format", "wandb", "--json"),
            lambda out, _: json.loads(out)["rows"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_readers_agree_on_what_is_lost(
    journal: Path, tmp_path: Path, words: tuple[str, ...], count: Callable[[str, str], int]
) -> None:
    for extra in ("duckdb", "pyarrow", "tensorboard", "wandb"):
        pytest.importorskip(extra)
    words = tuple(str(tmp_path / "out") if word == "OUT" else word for word in words)
    whole = esper(*words)
    assert (whole.exit_code, whole.stderr) == (0, "")
    lost = flip(journal)
    damaged = esper(*words)
    assert damaged.exit_code == 1
    assert count(damaged.stdout, whole.stdout) == NUM_EPOCHS - len(lost)
    place, missing = damaged.stderr.splitlines()
    assert "events-000001.jsonl.zst, after line" in place
    assert f"lost: metric {lost[0]}..{lost[-1]}; what is whole was read" in missing


def test_list_of_views_tells_damage_in_each_form(journal: Path) -> None:
    pytest.importorskip("duckdb")
    flip(journal)
    told = [esper("query", "alpha", "--views", *form) for form in ((), ("--csv",), ("--json",))]
    assert [one.exit_code for one in told] == [1, 1, 1]
    assert len({one.stderr for one in told}) == 1
    assert "epochs" in json.loads(told[-1].stdout)


def test_damaged_line_is_named_with_its_number(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:-1], b"\0\0junk\n", lines[-1]]))
    result = esper("replay", "alpha")
    assert result.exit_code == 1
    assert f"line {len(lines)}: not an event" in result.stderr
    assert "mark" in result.stdout.splitlines()[-1]
