from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import Batch, Encoder, encode_event
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.journal import writer as module
from esper_overwatch.protocol.journal.reader import last_words, newest_lines, read
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from tests.batches import batch_of, batches_of


def stamp(stream: Stream, seq: int, text: str = "") -> Batch:
    event = {
        "log": ev.LogLine(level="INFO", logger="x", message=text),
        "life": ev.RoundStarted(rounds=seq),
    }[stream]
    return batch_of(seq, 1000 + seq, ev.Context(round=seq), event)


def seqs(path: Path) -> list[tuple[str, int]]:
    return [(event.stream, event.seq) for event in read(path)]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    items = [stamp("life", 1), stamp("log", 1, "é\n"), stamp("life", 2)]
    journal.append(items[:2])
    journal.append([])
    journal.append(items[2:])
    journal.close()
    assert [event.line for event in read(path)] == [item.line(0) for item in items]
    assert path.stat().st_mode & 0o777 == 0o600


def test_numbers_go_on_after_any_tear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    whole = tmp_path / "whole.jsonl"
    journal = Journal(whole)
    journal.append([stamp("life", 1), stamp("log", 1, "a"), stamp("life", 2)])
    journal.close()
    content = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    torn = tmp_path / "torn.jsonl"
    for size in range(len(content) + 1):
        torn.write_bytes(content[:size])
        complete = max([end for end in ends if end <= size], default=0)
        journal = Journal(torn)
        assert journal.cut == size - complete
        count = ends.index(complete) + 1 if complete else 0
        kept = [("life", 1), ("log", 1), ("life", 2)][:count]
        assert journal.last == dict(kept)
        following = journal.last.get("life", 0) + 1
        journal.append([stamp("life", following)])
        journal.close()
        assert seqs(torn) == [*kept, ("life", following)]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0\n", b"{}\n", b'{"seq":9,"stream":"life"\n', b"\xff\n\n"])
def test_a_tail_of_rubbish_is_cut(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(stamp("life", 1).line(0) + b"\n" + tail)
    journal = Journal(path)
    assert journal.cut == len(tail)
    assert journal.last == {"life": 1}
    journal.close()


def test_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(stamp("life", 1).line(0) + b"\nrubbish\n" + stamp("life", 2).line(0) + b"\n")
    with pytest.raises(WireError, match=r"events\.jsonl, line 2: not an event"):
        list(read(path))
    bad: list[int] = []
    assert [e.seq for e in read(path, on_bad=lambda number, _: bad.append(number))] == [1, 2]
    assert bad == [2]


def test_a_line_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(stamp("life", 1).line(0) + b"\n" + stamp("life", 2).line(0))
    assert seqs(path) == [("life", 1)]


@given(
    st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=700), max_size=6), st.data()
)
def test_a_range_is_found_in_batches_of_many_lines(
    ticks: list[list[tuple[bool, int]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        journal, encoder = Journal(path), Encoder(dict.fromkeys(STREAMS, 0))
        lines: dict[str, list[bytes]] = {"life": [], "log": []}
        for tick in ticks:
            for is_life, size in tick:
                text = ev.LogLine(level="INFO", logger="x", message="x" * size)
                encoder.add(5, ev.Context(), ev.RoundStarted(rounds=size) if is_life else text)
            batches = encoder.take()
            journal.append(batches)
            for batch in batches:
                lines[batch.stream] += [batch.line(n) for n in range(len(batch))]
        if data.draw(st.booleans()):
            journal.close()
            journal = Journal(path)
        stream = data.draw(st.sampled_from(["life", "log"]))
        first = data.draw(st.integers(1, len(lines[stream]) + 1))
        found: list[tuple[int, bytes]] = []
        while part := journal.range(stream, first + len(found), 10**6, limit=50_000):
            found += part
        journal.close()
        assert found == list(enumerate(lines[stream][first - 1 :], first))


def test_rare_stream_is_found_behind_a_common_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCAN_BYTES", 600_000)
    journal = Journal(tmp_path / "events.jsonl")
    for i in range(1, 6):
        journal.append([stamp("life", i)])
        log = [ev.LogLine(level="INFO", logger="x", message="x" * 1000)] * 700
        journal.append(batches_of(log, first=i * 700 - 699))
    found: list[int] = []
    while part := journal.range("life", len(found) + 1, 5, limit=1 << 20):
        found += [seq for seq, _ in part]
    assert found == [1, 2, 3, 4, 5]
    journal.close()


def test_a_full_disk_is_told_and_survived() -> None:
    journal = Journal(Path("/dev/full"))
    journal.append([stamp("life", 1)])
    assert journal.error == os.strerror(errno.ENOSPC)
    assert journal.errors == 1
    assert journal.waiting > 0
    journal.append([stamp("life", 2)])
    assert journal.errors == 1, "the disk is asked again once a second, not at each tick"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_disk_that_recovers_tears_and_loses_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    with largest_file(1000):
        for seq in range(1, 20):
            journal.append([stamp("life", seq)])
        assert journal.error is not None
        assert path.stat().st_size == 1000
    journal.append([stamp("life", 20)])
    assert journal.error is None
    assert journal.lost == 0
    assert seqs(path) == [("life", seq) for seq in range(1, 21)]
    assert [seq for seq, _ in journal.range("life", 7, 20, limit=1 << 20)] == list(range(7, 21))
    journal.close()


def test_what_cannot_be_kept_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 2000)
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    with largest_file(0):
        for seq in range(1, 41):
            journal.append([stamp("life", seq)])
        assert journal.waiting <= 2000
        assert journal.lost > 0
    journal.append([stamp("life", 41)])
    journal.close()
    assert len(seqs(path)) == 41 - journal.lost
    assert seqs(path)[-1] == ("life", 41)


def test_a_journal_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"cannot open the journal .*: Is a directory"):
        Journal(tmp_path)
    with pytest.raises(FolderError, match=r"cannot read the journal .*: No such file"):
        next(read(tmp_path / "none.jsonl"))


def write(path: Path, *events: object) -> None:
    lines = [encode_event(i, i, ev.Context(round=3, epoch=i), e) for i, e in enumerate(events, start=1)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def test_last_words(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_words(path) is None
    write(path)
    assert last_words(path) is None
    noise = [ev.LogLine(level="INFO", logger="x", message="y" * 300)] * 900
    write(path, ev.RunStateChanged(state="TRAINING"), *noise)
    words = last_words(path)
    assert words is not None
    assert (words.state, words.round, words.epoch, words.stopped) == ("TRAINING", 3, 901, None)
    write(path, ev.RunStateChanged(state="STOPPING"), ev.RunStopped(reason="asked", exit_code=0, rounds=3))
    words = last_words(path)
    assert words is not None
    assert words.stopped is not None
    assert (words.state, words.stopped.reason) == ("STOPPING", "asked")


def test_state_of_a_tail_that_tells_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    steps = [ev.Scalars(step=i, values={"loss": 1.0}) for i in range(100)]
    write(path, ev.RunStateChanged(state="TRAINING"), *steps)
    words = last_words(path, limit=2000)
    assert words is not None
    assert words.state == "TRAINING", "what comes after another state would be no step"
    write(path, *steps, ev.RunStateChanged(state="PAUSED"), *[ev.Mark(text="x", client="c")] * 3)
    words = last_words(path, limit=2000)
    assert words is not None
    assert words.state == "PAUSED"
    write(path, ev.RunStateChanged(state="PAUSED"), *[ev.Mark(text="x", client="c")] * 100)
    words = last_words(path, limit=2000)
    assert words is not None
    assert words.state is None


def test_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert newest_lines(path) == []
    items = [stamp("life", seq) for seq in range(1, 50)]
    path.write_bytes(b"".join(item.line(0) + b"\n" for item in items) + b'{"seq":50,"stream":"life"')
    assert newest_lines(path) == [("life", item.first, item.line(0)) for item in items]
    some = newest_lines(path, limit=1000)
    assert some == [("life", item.first, item.line(0)) for item in items[-len(some) :]]
