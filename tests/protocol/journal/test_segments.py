"""Closed segments: whole whatever is killed or torn, found by number, kept within their bytes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import Batch
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.journal.compactor import Compactor
from esper_overwatch.protocol.journal.reader import (
    JournalRange,
    last_words,
    lines_newest_first,
    newest_lines,
    oldest_numbers,
    read,
)
from esper_overwatch.protocol.journal.segments import SegmentFolder, whole_frames
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import Stream
from tests.batches import batch_of


def stamp(stream: Stream, seq: int, size: int = 300) -> Batch:
    text = random.Random(seq).randbytes(size // 2).hex()
    event: object = ev.LogLine(level="INFO", logger="x", message=text)
    if stream == "life":
        event = ev.RoundStarted(rounds=seq)
    ts = 1_000_000 + seq
    return batch_of(seq, ts, ev.Context(round=seq), event)


def batches(count: int, size: int = 300) -> list[list[Batch]]:
    """One life line, then three of the log, and so on."""
    return [
        [stamp("life", i), *[stamp("log", 3 * i - k, size) for k in (2, 1, 0)]] for i in range(1, count + 1)
    ]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compactor's work is done where it is asked for, and its steps can be counted."""
    monkeypatch.setattr(Compactor, "wake", Compactor.work)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def written(path: Path, count: int = 30, *, segment_bytes: int = 4000, size: int = 300) -> list[bytes]:
    """A journal with several segments, closed in order; its lines."""
    journal = Journal(path, JournalLimits(segment_bytes=segment_bytes))
    parts = batches(count, size)
    for part in parts:
        journal.append(part)
    journal.close()
    return [item.line(0) for part in parts for item in part]


def lines(path: Path) -> list[bytes]:
    return [event.line for event in read(path)]


def test_segments_close_by_size_and_manifest_lists_their_content(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    expected = written(path)
    folder = SegmentFolder(path)
    manifest = folder.manifest()
    assert [s.number for s in manifest.segments] == folder.numbers() == list(range(1, 10))
    assert folder.numbers(".jsonl") == []
    seqs = {"life": 0, "log": 0}
    for segment in manifest.segments:
        packed = folder.path / segment.file
        assert packed.stat().st_size == segment.bytes
        assert packed.stat().st_mode & 0o777 == 0o600
        assert hashlib.sha256(packed.read_bytes()).hexdigest() == segment.sha256
        with packed.open("rb") as file:
            content = b"".join(content for _, _, content in whole_frames(file))
        assert len(content) == segment.raw_bytes >= 4000
        for stream, span in segment.streams.items():
            assert span.first == seqs[stream] + 1, "no number is missing between two segments"
            seqs[stream] = span.last
        assert segment.from_ts == 1_000_000 + segment.streams["life"].first
        assert segment.to_ts == 1_000_000 + segment.streams["log"].last
    assert lines(path) == expected
    assert list(lines_newest_first(path)) == expected[::-1]


def test_segment_is_closed_by_age_unless_empty(tmp_path: Path, at_once: None) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, JournalLimits(segment_seconds=0))
    for part in ([], [stamp("life", 1)], [], [], [stamp("life", 2)], []):
        journal.append(part)
    assert journal.segments["closed"] == 2
    assert path.stat().st_size == 0
    journal.close()
    again = Journal(path)
    assert again.last == {"life": 2}, "numbers go on though the hot segment is empty"
    again.close()


class Killed(BaseException):
    """As SIGKILL: nothing after it is executed."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Whatever this thread changes on the disk is counted; from the `step`th on nothing is executed."""
    done: list[str] = []
    mortal = threading.get_ident()

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != mortal:
                return real(*args, **options)
            if len(done) >= step:
                raise Killed(name)
            done.append(name)
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in (
            "replace",
            "rename",
            "unlink",
            "open",
            "write",
            "mkdir",
            "ftruncate",
            "fdatasync",
            "fsync",
        ):
            patch.setattr(os, name, counted(name))
        yield done


def test_killed_between_any_two_steps_the_journal_reads_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    step, ended = 0, False
    while not ended:
        path = tmp_path / str(step) / "events.jsonl"
        path.parent.mkdir()
        expected = written(path, 8, segment_bytes=3000)
        before = SegmentFolder(path).numbers()
        journal = Journal(path, JournalLimits(segment_bytes=10**9))
        with killed_at(step, monkeypatch) as done:
            try:
                journal.rotate()
                ended = True
            except Killed:
                pass
        step += 1
        assert lines(path) == expected, f"after {done}"
        assert list(lines_newest_first(path)) == expected[::-1], f"after {done}"
        again = Journal(path, JournalLimits(segment_bytes=10**9))
        assert again.last == {"life": 8, "log": 24}
        again.append([stamp("life", 9)])
        assert [seq for seq, _ in again.range("life", 9, 9, limit=1)] == [9]
        found = []
        while part := again.range("log", len(found) + 1, 24, limit=1 << 20):
            found += [seq for seq, _ in part]
        assert found == list(range(1, 25))
        again.rotate()
        again.close()
        assert lines(path) == [*expected, stamp("life", 9).line(0)]
        folder = SegmentFolder(path)
        assert folder.numbers(".jsonl") == []
        numbers = [segment.number for segment in folder.manifest().segments]
        assert numbers == folder.numbers() == list(range(1, len(numbers) + 1))
        assert len(numbers) in (len(before) + 1, len(before) + 2)
        assert not list(folder.path.glob(".*"))
    assert step > 10, "the steps were counted"


def test_kill_during_removal_leaves_the_rest_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    step, ended = 0, False
    while not ended:
        path = tmp_path / str(step) / "events.jsonl"
        path.parent.mkdir()
        expected = written(path, 8, segment_bytes=2000)
        keep = SegmentFolder(path).manifest().segments[-1].bytes + 10
        with killed_at(step, monkeypatch) as done:
            try:
                Journal(path, JournalLimits(keep_bytes=keep)).close()
                ended = True
            except Killed:
                pass
        step += 1
        rest = lines(path)
        assert rest == expected[len(expected) - len(rest) :], f"after {done}"
        Journal(path, JournalLimits(keep_bytes=keep)).close()
        folder = SegmentFolder(path)
        assert [s.number for s in folder.manifest().segments] == folder.numbers()
        assert len(folder.numbers()) == 1
        rest = lines(path)
        assert rest == expected[len(expected) - len(rest) :]
        assert sorted(p.name for p in folder.path.iterdir()) == sorted(
            [
                folder.index_path(folder.numbers()[0]).name,
                folder.packed(folder.numbers()[0]).name,
                "manifest.json",
            ]
        )
    assert step > 10


@pytest.mark.slow
def test_torn_frame_costs_only_the_rest_of_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.journal.compactor.FRAME_BYTES", 300)
    path = tmp_path / "events.jsonl"
    expected = written(path, 7, segment_bytes=1300, size=20)
    folder = SegmentFolder(path)
    assert len(folder.numbers()) >= 3
    index = folder.index(2)
    assert index is not None
    assert len(index.frames) >= 4
    whole = folder.packed(2).read_bytes()
    with folder.packed(2).open("rb") as file:
        contents = [content for _, _, content in whole_frames(file)]
    firsts = expected.index(contents[0].split(b"\n")[0])
    after = firsts + sum(content.count(b"\n") for content in contents)
    bad: list[str] = []
    for size in range(len(whole)):
        folder.packed(2).write_bytes(whole[:size])
        frames = sum(1 for _, offset in [*index.frames[1:], (0, len(whole))] if offset <= size)
        held = sum(content.count(b"\n") for content in contents[:frames])
        bad.clear()
        found = [e.line for e in read(path, on_bad=lambda _, error: bad.append(str(error)))]
        assert found == expected[: firsts + held] + expected[after:]
        assert len(bad) == 1
        assert f"events-000002.jsonl.zst, after line {held}" in bad[0]
        assert list(lines_newest_first(path)) == found[::-1]
    folder.packed(2).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WireError, match="000002"):
        lines(path)
    journal = Journal(path)
    spans = [segment.streams["log"] for segment in folder.manifest().segments]
    assert journal.range("log", spans[1].last, 99, limit=1 << 20)[0][0] == spans[2].first, "the next held"
    assert journal.range("log", spans[1].first, 99, limit=1 << 20)[0][0] == spans[1].first
    journal.close()


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    written(path, 9, segment_bytes=3500)
    packed = SegmentFolder(path).packed(1)
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 1
    packed.write_bytes(content)
    with pytest.raises(WireError, match="000001"):
        lines(path)


@pytest.mark.parametrize("indexed", [True, False])
def test_damage_costs_only_its_frame_without_index_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None, indexed: bool
) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.journal.compactor.FRAME_BYTES", 300)
    monkeypatch.setattr(
        "esper_overwatch.protocol.journal.segments.BLOCK_BYTES", 7
    )  # the magic number lies across blocks
    path = tmp_path / "events.jsonl"
    expected = written(path, 7, segment_bytes=1300, size=20)
    folder = SegmentFolder(path)
    index = folder.index(2)
    assert index is not None
    assert len(index.frames) >= 4
    whole = folder.packed(2).read_bytes()
    begins = [offset for _, offset in index.frames] + [index.bytes]
    with folder.packed(2).open("rb") as file:
        contents = [content.splitlines() for _, _, content in whole_frames(file)]
    if not indexed:
        folder.index_path(2).unlink()
    for at in range(0, len(whole), 5):
        folder.packed(2).write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        frame = max(n for n, begin in enumerate(begins) if begin <= at)
        bad: list[str] = []
        found = [e.line for e in read(path, on_bad=lambda _, error: bad.append(str(error)))]  # noqa: B023
        assert found == [line for line in expected if line not in contents[frame]], at
        assert len(bad) == 1
        assert list(lines_newest_first(path)) == found[::-1]


@pytest.mark.parametrize("lost", ["manifest.json", "events-000002.index.json", "both", "damaged"])
def test_index_and_manifest_are_made_anew_from_the_segments(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "events.jsonl"
    expected = written(path)
    folder = SegmentFolder(path)
    manifest, index = folder.manifest(), folder.index(2)
    for name in ("manifest.json", "events-000002.index.json"):
        if lost == "damaged":
            (folder.path / name).write_bytes(b'{"v":1,"segm')
        elif lost in (name, "both"):
            (folder.path / name).unlink()
    assert lines(path) == expected
    journal = Journal(path)
    assert journal.last == {"life": 30, "log": 90}
    assert [seq for seq, _ in journal.range("log", 18, 18, limit=1 << 20)] == [18]
    journal.close()
    assert folder.manifest() == manifest
    if lost != "events-000002.index.json":
        assert folder.index(2) == index


def test_the_oldest_go_and_their_numbers_are_not_used_again(tmp_path: Path, at_once: None) -> None:
    path = tmp_path / "events.jsonl"
    expected = written(path, 40)
    folder = SegmentFolder(path)
    sizes = [segment.bytes for segment in folder.manifest().segments]
    keep = sizes[-1] + sizes[-2] + 1
    journal = Journal(path, JournalLimits(keep_bytes=keep))
    gone = list(journal.removed)
    assert [segment.number for segment in gone] == list(range(1, len(sizes) - 1))
    oldest = gone[-1].streams["log"].last + 1
    assert oldest_numbers(path) == {"life": gone[-1].streams["life"].last + 1, "log": oldest}
    assert journal.range("log", 1, oldest - 1, limit=1 << 20) == []
    assert journal.range("log", 1, oldest + 1, limit=1 << 20)[0][0] == oldest
    rest = lines(path)
    assert rest == expected[len(expected) - len(rest) :]
    assert sum(segment.bytes for segment in folder.manifest().segments) <= keep
    journal.close()
    last = Journal(path, JournalLimits(keep_bytes=1))
    last.rotate()
    assert folder.numbers() == []
    assert last.last == {"life": 40, "log": 120}
    last.close()
    again = Journal(path)
    assert again.last == {"life": 40, "log": 120}, "remembered though no line is left"
    again.append([stamp("life", 41)])
    again.rotate()
    assert folder.numbers() == [len(sizes) + 2]
    again.close()


@given(st.lists(st.tuples(st.sampled_from(["life", "log"]), st.integers(0, 2000)), max_size=200), st.data())
def test_a_range_is_found_in_whatever_segment(parts: list[tuple[Stream, int]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        limits = JournalLimits(segment_bytes=data.draw(st.integers(200, 40_000)))
        journal = Journal(path, limits)
        last = {"life": 0, "log": 0}
        kept: dict[tuple[str, int], bytes] = {}
        for stream, size in parts:
            last[stream] += 1
            item = stamp(stream, last[stream], size)
            kept[stream, item.first] = item.line(0)
            journal.append([item])
        if data.draw(st.booleans()):
            journal.close()
            journal = Journal(path, limits)
        stream = data.draw(st.sampled_from(["life", "log"]))
        first = data.draw(st.integers(1, last[stream] + 2))
        end = data.draw(st.integers(first, last[stream] + 3))
        found: list[tuple[int, bytes]] = []
        limit = data.draw(st.integers(1, 20_000))
        while part := journal.range(stream, first + len(found), end, limit=limit):
            assert sum(len(line) for _, line in part[:-1]) < limit
            found += part
        seqs = range(first, min(end, last[stream]) + 1)
        assert found == [(seq, kept[stream, seq]) for seq in seqs]
        journal.close()
        wanted = JournalRange(stream, first, end)
        assert [(event.seq, event.line) for event in read(path, wanted=wanted)] == found
        everything = [kept[key] for key in kept]
        assert lines(path) == everything
        assert [line for _, _, line in newest_lines(path)] == everything


def test_a_range_decompresses_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.journal.compactor.FRAME_BYTES", 2000)
    path = tmp_path / "events.jsonl"
    written(path, 200, segment_bytes=200_000)
    monkeypatch.setattr("esper_overwatch.protocol.journal.segments.FRAME_BYTES", 2000)
    monkeypatch.setattr("esper_overwatch.protocol.journal.line_files.INDEX_EVENTS", 1)
    folder = SegmentFolder(path)
    index = folder.index(1)
    assert index is not None
    assert len(index.frames) > 50
    read_on = []
    real = whole_frames

    def counting(file: Any) -> Iterator[tuple[int, int, bytes]]:
        for frame in real(file):
            read_on.append(frame)
            yield frame

    monkeypatch.setattr("esper_overwatch.protocol.journal.segments.whole_frames", counting)
    found = folder.range(1, "log", 257, 258, limit=1 << 20, scan=1 << 20)
    assert [seq for seq, _ in found] == [257, 258]
    assert len(read_on) <= 2


def test_the_tail_is_read_across_segments(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    state = ev.RunStateChanged(state="TRAINING")
    journal.append([batch_of(1, 5, ev.Context(round=2, epoch=3), state)])
    journal.rotate()
    journal.append([stamp("log", i) for i in range(1, 50)])
    journal.rotate()
    words = last_words(path)
    assert words is not None
    assert (words.state, words.round) == ("TRAINING", 49)
    journal.close()
    words = last_words(path)
    assert words is not None
    assert words.state == "TRAINING"
    assert [seq for _, seq, _ in newest_lines(path)] == [1, *range(1, 50)]
    cut = newest_lines(path, limit=1000)
    assert [seq for _, seq, _ in cut] == list(range(50 - len(cut), 50))


def test_reader_continues_while_segments_are_closed_and_compressed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, JournalLimits(segment_bytes=3000))
    parts = batches(60)
    for part in parts[:30]:
        journal.append(part)
    reader = read(path)
    seen = [next(reader).line for _ in range(5)]
    for part in parts[30:]:
        journal.append(part)
    journal.close()
    seen += [event.line for event in reader]
    expected = [item.line(0) for part in parts for item in part]
    assert seen == expected[: len(seen)], "without a hole"
    assert len(seen) >= 120, "all that was there when it began"
    assert lines(path) == expected


def test_full_disk_keeps_plain_segment_and_compresses_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, JournalLimits(segment_bytes=10**9))
    journal.append([stamp("log", seq) for seq in range(1, 20)])

    def full(*_: object) -> None:
        raise FolderError("cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("esper_overwatch.protocol.journal.compactor.write_atomically", full)
        journal.rotate()
    folder = SegmentFolder(path)
    assert folder.numbers(".jsonl") == [1]
    assert journal.segments["error"] == "cannot write: No space left on device"
    assert [seq for seq, _ in journal.range("log", 3, 4, limit=1 << 20)] == [3, 4]
    journal.append([stamp("log", 20)])
    journal.rotate()
    assert folder.numbers(".jsonl") == []
    assert journal.segments["error"] is None
    journal.close()
    assert [event.seq for event in read(path)] == list(range(1, 21))


def test_a_segment_that_cannot_be_closed_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events.jsonl"
    (tmp_path / "segments").write_text("not a folder")
    journal = Journal(path, JournalLimits(segment_bytes=500))
    for seq in range(1, 20):
        journal.append([stamp("log", seq)])
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once, not at each tick"
    assert journal.error is None
    journal.close()
    assert [event.seq for event in read(path)] == list(range(1, 20))


def test_a_copied_segment_is_read_without_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    path.parent.mkdir()
    expected = written(path)
    shutil.copytree(path.parent, tmp_path / "copy")
    (tmp_path / "copy" / "events.jsonl").unlink()
    copied = lines(tmp_path / "copy" / "events.jsonl")
    assert copied == expected[: len(copied)]
    assert len(copied) > 100
