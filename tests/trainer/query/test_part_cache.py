"""Tables of compressed segments: kept, read again, thrown away when the segment is another."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.reader import JournalPart, lines_newest_first, removed_boots
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.trainer.query import part_cache
from esper_overwatch.trainer.query.database import Database
from esper_overwatch.trainer.query.part_cache import ABANDONED_SECONDS
from tests.trainer.journals import epoch, round_started, started, write_run

NUM_EPOCHS = 60
COUNT = "SELECT count(*), count(DISTINCT epoch) FROM epochs"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two boots, the second of which plays the epochs from 31 on anew, in several segments."""
    told = [started("b1"), round_started(1), *(epoch(1, n, 0.1) for n in range(1, 51))]
    told += [started("b2", resumed_round=0), *(epoch(1, n, 0.9) for n in range(31, NUM_EPOCHS + 1))]
    return write_run(tmp_path, "r", told, JournalLimits(segment_bytes=15_000)).events


def read_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[int, ...]]]:
    """The segments of which a query decodes lines, and its answer."""
    decoded: list[int] = []
    events = JournalPart.events

    def watched(self: JournalPart, on_bad: object) -> Iterator[Event]:
        decoded.append(self.number)
        return events(self, on_bad)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(JournalPart, "events", watched)
        rows = Database(path).ask(COUNT).rows
    return decoded, rows


def test_a_segment_is_decoded_once(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, rows = read_lines(journal, monkeypatch)
    again, same = read_lines(journal, monkeypatch)
    assert len(first) >= 4
    assert again == first[-1:], "the segment that is written to"
    assert rows == same == [(2 * NUM_EPOCHS, NUM_EPOCHS)]
    anew = Database(journal).ask("SELECT min(epoch) FROM epochs WHERE env = 0 AND val_accuracy > 0.5").rows
    assert anew == [(31,)]


def test_without_a_cache_the_answer_is_the_same(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (journal.parent / "cache").write_text("not a folder")
    first, rows = read_lines(journal, monkeypatch)
    assert rows == [(2 * NUM_EPOCHS, NUM_EPOCHS)]
    assert read_lines(journal, monkeypatch) == (first, rows)


def test_half_a_table_folder_is_made_again(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, rows = read_lines(journal, monkeypatch)
    folder = sorted((journal.parent / "cache").glob("query-*/0*"))[0]
    (folder / "summary.json").unlink()
    assert read_lines(journal, monkeypatch) == ([first[0], first[-1]], rows)
    assert read_lines(journal, monkeypatch) == (first[-1:], rows)


@pytest.mark.parametrize("size", [None, 0, 500])
def test_damaged_table_is_made_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    first, rows = read_lines(journal, monkeypatch)
    table = sorted((journal.parent / "cache").glob("query-*/0*/epoch.parquet"))[0]
    if size is None:
        table.unlink()
    else:
        os.truncate(table, size)
    assert read_lines(journal, monkeypatch) == ([first[0], first[-1]], rows)
    assert read_lines(journal, monkeypatch) == (first[-1:], rows)


def test_half_made_folders_go_after_a_day(journal: Path) -> None:
    Database(journal).close()
    (cache,) = (journal.parent / "cache").glob("query-*")
    for name, seconds in ((".left", ABANDONED_SECONDS + 60), (".being-made", 0)):
        (cache / name).mkdir()
        os.utime(cache / name, (time.time() - seconds,) * 2)
    Database(journal).close()
    assert [path.name for path in cache.glob(".*")] == [".being-made"]


def test_tables_of_segments_that_are_gone_go(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_lines(journal, monkeypatch)
    gone = sorted((journal.parent / "segments").glob("*.zst"))[-1]
    before = {path.name[:6] for path in (journal.parent / "cache").glob("query-*/*")}
    gone.unlink()
    read_lines(journal, monkeypatch)
    after = {path.name[:6] for path in (journal.parent / "cache").glob("query-*/*")}
    assert before - after == {gone.name[len("events-") :][:6]}


def test_boot_that_retention_takes_meanwhile_is_there_once(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retain_first(path: Path) -> JournalPart | None:
        Journal(path, JournalLimits(segment_bytes=15_000, keep_bytes=1)).close()
        return removed_boots(path)

    monkeypatch.setattr(part_cache, "removed_boots", retain_first)
    assert removed_boots(journal) is None
    db = Database(journal)
    assert removed_boots(journal) is not None
    assert db.ask("SELECT boot FROM runs").rows == [("b1",), ("b2",)]
    assert db.ask(COUNT).rows == [(2 * NUM_EPOCHS, NUM_EPOCHS)]


def test_names_outlive_the_segment_that_gave_them(tmp_path: Path) -> None:
    """Retention has taken the only `run.started`."""
    limits = JournalLimits(segment_bytes=6_000, keep_bytes=4_000)
    told = [started("b1"), round_started(1), *(epoch(1, n) for n in range(1, NUM_EPOCHS + 1))]
    path = write_run(tmp_path, "r", told, limits).events
    assert b"run.started" not in b"".join(lines_newest_first(path))
    again = Journal(path, limits)
    again.rotate()
    again.close()
    for _ in range(2):
        db = Database(path)
        names = "SELECT DISTINCT op, slot FROM decisions ORDER BY op"
        assert db.ask(names).rows == [("GERMINATE", "r0c1"), ("WAIT", None)]
        assert db.ask("SELECT boot FROM runs").rows == [("b1",)]
        assert db.damage.lines == []
