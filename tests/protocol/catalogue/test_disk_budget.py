"""Journals of ended runs within a share of the disk: who loses what, and who nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper_overwatch.protocol.catalogue.about import edit_about
from esper_overwatch.protocol.catalogue.disk_budget import PINNED, keep_within
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.reader import oldest_numbers, read
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.runs import LOCK_FILE, RunFolder
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.lock import Lock
from tests.trainer import journals

TOLD = [journals.started("b1"), *(journals.epoch(1, n) for n in range(1, 200))]
NAMES = ("first", "live", "kept", "second", "third")


@pytest.fixture
def runs(home: Path) -> Iterator[dict[str, RunFolder]]:
    """Five runs of some segments each, in the order of their names; `live` is held, `kept` is pinned."""
    found = {}
    for name in NAMES:
        found[name] = journals.write_run(home, name, TOLD, JournalLimits(segment_bytes=20_000))
        if name != "live":
            found[name].release()
    edit_about(found["kept"].path, lambda about: msgspec.structs.replace(about, added=(PINNED,)))
    yield found
    found["live"].release()


def segment_bytes(run: RunFolder) -> int:
    return sum(segment.bytes for segment in SegmentFolder(run.path / EVENTS_FILE).manifest().segments)


def events(run: RunFolder) -> list[Event]:
    problems: list[object] = []
    found = list(read(run.path / EVENTS_FILE, on_bad=lambda *problem: problems.append(problem)))
    assert not problems
    return found


def test_oldest_ended_runs_lose_their_oldest_segments(
    runs: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {name: segment_bytes(run) for name, run in runs.items()}
    assert min(sizes.values()) > 0
    whole = {name: len(events(run)) for name, run in runs.items()}
    of_three = sum(sizes[name] for name in ("first", "second", "third"))
    keep = of_three - sizes["first"] - sizes["second"] // 2
    usage = shutil.disk_usage(tmp_path)._replace(total=10 * of_three)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    assert keep_within(1.0) == [], "there is room"

    freed = keep_within(keep / usage.total)
    assert [run.name for run in freed] == ["first", "second"]
    left = {name: segment_bytes(run) for name, run in runs.items()}
    assert left["first"] == 0
    assert 0 < left["second"] < sizes["second"]
    assert left["first"] + left["second"] + left["third"] <= keep
    assert [left[name] for name in ("live", "kept", "third")] == [
        sizes[name] for name in ("live", "kept", "third")
    ]
    assert sum(run.bytes for run in freed) == sum(sizes.values()) - sum(left.values())
    for name, run in runs.items():
        found = events(run)
        numbers = [event.seq for event in found if event.stream == "metric"]
        assert numbers == list(range(oldest_numbers(run.path / EVENTS_FILE).get("metric", 1), 200)), name
        assert (len(found) == whole[name]) == (name not in ("first", "second"))
    assert keep_within(keep / usage.total) == [], "once is enough"


def test_run_that_begins_to_live_loses_nothing(
    runs: dict[str, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had ended when the list was made."""
    before, usage = segment_bytes(runs["first"]), shutil.disk_usage("/")
    held: list[Lock] = []

    def begin_to_live(_path: Path) -> object:
        held.append(Lock(runs["first"].path / LOCK_FILE))
        return usage

    monkeypatch.setattr(shutil, "disk_usage", begin_to_live)
    assert [run.name for run in keep_within(0.0)] == ["second", "third"]
    assert segment_bytes(runs["first"]) == before
    held[0].release()
