"""Run folders from strangers: each takes little memory, and what is wrong with it is told in its own row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.source.run_list import LocalMachine
from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.journal.compactor import Compactor
from esper_overwatch.protocol.journal.line_files import MAX_LINE_BYTES
from esper_overwatch.protocol.journal.reader import last_words, lines_newest_first, read
from esper_overwatch.protocol.journal.segments import MAX_FRAME_BYTES, SegmentFolder, unpack
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, list_runs
from tests.trainer.command import esper

LINES = [
    encode_event(seq, seq, ev.Context(round=1), ev.RunStateChanged(state="TRAINING")) for seq in range(1, 9)
]
CONTENT = b"".join(line + b"\n" for line in LINES)


def pack(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)


def make_run(home: Path, name: str) -> Path:
    """A run with one closed segment of two frames, and nothing else."""
    with RunFolder.claim(name, home=home) as run:
        folder = SegmentFolder(run.events)
    folder.path.mkdir(mode=0o700)
    frames = [pack(CONTENT[: len(CONTENT) // 2]), pack(CONTENT[len(CONTENT) // 2 :])]
    folder.packed(1).write_bytes(b"".join(frames))
    offsets = [(0, 0), (len(CONTENT) // 2, len(frames[0]))]
    index = {"bytes": sum(map(len, frames)), "frames": offsets, "streams": {"life": [(1, 0)]}}
    folder.index_path(1).write_text(json.dumps(index))
    return run.events


def bomb(path: Path, size: int) -> None:
    """A frame that declares its size, or hides it."""
    SegmentFolder(path).packed(1).write_bytes(pack(bytes(size)))


def hidden_bomb(path: Path) -> None:
    frame = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(64 << 20))
    SegmentFolder(path).packed(1).write_bytes(frame)


def lying_bomb(path: Path) -> None:
    """The header says fewer bytes than its blocks have."""
    frame = bytearray(pack(bytes(64 << 20)))
    at = frame.index((64 << 20).to_bytes(4, "little"))
    frame[at : at + 4] = (1000).to_bytes(4, "little")
    SegmentFolder(path).packed(1).write_bytes(frame)


def with_index(**changes: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        index = json.loads(SegmentFolder(path).index_path(1).read_bytes())
        SegmentFolder(path).index_path(1).write_text(json.dumps(index | changes))

    return write


def with_pipe(path: Path) -> None:
    os.mkfifo(path)


def with_identity(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path.parent / "run.json").write_bytes(content)

    return write


HARMLESS = {
    "no frames": with_index(frames=[]),
    "negative bytes": with_index(bytes=-5),
    "huge frame": with_index(bytes=10**15),
    "huge offset": with_index(frames=[[0, 0], [1, 10**30]]),
    "descending frames": with_index(frames=[[0, 0], [5, 5], [6, 4]]),
    "deep index": lambda path: SegmentFolder(path).index_path(1).write_bytes(b'{"x":' + b"[" * 100_000),
}
"""An index counts as missing where it cannot be one."""
TOLD = {
    "bomb": lambda path: bomb(path, 64 << 20),
    "hidden bomb": hidden_bomb,
    "lying bomb": lying_bomb,
    "pipe": with_pipe,
    "junk": lambda path: SegmentFolder(path).packed(1).write_bytes(b"junk" * 100),
    "text that is none": with_identity(b'{"id":"\xff"}'),
    "deep identity": with_identity(b'{"x":' + b"[" * 100_000),
    "other year": with_identity(json.dumps({"id": "a", "name": "bad", "created": 10**400}).encode()),
    "other folder": with_identity(json.dumps({"id": "../../x", "name": "bad", "created": 1}).encode()),
}


@pytest.mark.parametrize("damage", [*HARMLESS, *TOLD])
def test_damage_of_a_run_is_told_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Before, most of these took the whole list away."""
    monkeypatch.setenv("ESPER_HOME", str(tmp_path))
    path = make_run(tmp_path, "bad")
    make_run(tmp_path, "good")
    (HARMLESS | TOLD)[damage](path)
    rows = {run.name: run for run in list_runs()}
    assert bool(rows["bad"].damage) == (damage in TOLD)
    assert (rows["good"].damage, rows["good"].overview is not None) == ("", True)
    for words in (["list", "--all"], ["list", "--all", "--json"], ["status", "bad"], ["doctor", "bad"]):
        answer = esper(*words)
        assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    machine = LocalMachine(tmp_path)
    machine._look()
    shown = {run.name: run.damage for run in machine._answer or ()}
    assert shown == {"good": "", "bad": rows["bad"].damage}


def whole(path: Path) -> list[bytes]:
    """What can be read of a journal from the front; it is the same from behind."""
    found = [event.line for event in read(path, on_bad=lambda _number, _error: None)]
    assert list(lines_newest_first(path)) == found[::-1]
    return found


@pytest.mark.parametrize("damage", HARMLESS)
def test_index_that_cannot_be_one_counts_as_missing(tmp_path: Path, damage: str) -> None:
    path = make_run(tmp_path, "bad")
    HARMLESS[damage](path)
    assert SegmentFolder(path).index(1) is None
    assert whole(path) == LINES
    assert [seq for seq, _ in SegmentFolder(path).range(1, "life", 3, 5, limit=1 << 20, scan=1 << 20)] == [
        3,
        4,
        5,
    ]


NUMBER = st.integers(-(10**30), 10**30) | st.integers(-5, 300)
PAIRS = st.lists(st.tuples(NUMBER, NUMBER), max_size=4)
JSON = st.recursive(
    NUMBER | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(
    index=st.fixed_dictionaries(
        {"bytes": NUMBER, "frames": PAIRS, "streams": st.just({}) | st.builds(dict, life=PAIRS)}
    )
    | JSON,
    manifest=JSON
    | st.fixed_dictionaries(
        {"segments": st.lists(JSON), "removed": st.fixed_dictionaries({"number": NUMBER})}
    ),
    first=NUMBER,
)
def test_no_index_or_manifest_ends_a_reader(index: Any, manifest: Any, first: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        path = make_run(Path(home), "bad")
        folder = SegmentFolder(path)
        folder.index_path(1).write_text(json.dumps(index))
        folder.manifest_path.write_text(json.dumps(manifest))
        assert [event.line for event in read(path, on_bad=lambda _number, _error: None)] == LINES
        assert set(lines_newest_first(path)) <= set(LINES)
        assert {line for _, line in folder.range(1, "life", first, 99, limit=1 << 20, scan=1 << 20)} <= set(
            LINES
        )
        assert all(run.state for run in list_runs(home))


@given(st.data())
def test_no_mutated_frame_ends_a_reader(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as home:
        path = make_run(Path(home), "bad")
        packed = SegmentFolder(path).packed(1)
        content = bytearray(packed.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        packed.write_bytes(content)
        if data.draw(st.booleans()):
            SegmentFolder(path).index_path(1).unlink()
            assert set(whole(path)) <= set(LINES)
        assert set(lines_newest_first(path)) <= set(LINES)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: zstandard.FRAME_HEADER + rest))
def test_a_frame_is_read_or_refused(frame: bytes) -> None:
    try:
        content = unpack(frame)
    except WireError:
        return
    assert len(content) <= MAX_FRAME_BYTES


def test_line_without_an_end_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.write(LINES[0] + b"\n" + LINES[1])
        file.truncate(file.tell() + 3 * MAX_LINE_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + LINES[2] + b"\n")
    assert whole(path) == [LINES[0], LINES[2]]
    path.write_bytes(b'{"seq":' + b"9" * 5000 + b',"stream":"life","ts":1}\n')
    assert last_words(path) is None


LIMITED = """
import resource, sys
from esper_overwatch.protocol.runs import list_runs
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (160 << 20),) * 2)
for run in list_runs(sys.argv[1]):
    run.state, run.overview
    assert run.damage and "emory" not in run.damage, run.damage
"""


@pytest.mark.slow
def test_hostile_folders_take_little_memory(tmp_path: Path) -> None:
    """Before, a segment of 98 KB made a list take 3.2 GiB."""
    for name in ("bomb", "hidden bomb", "lying bomb"):
        TOLD[name](make_run(tmp_path, name.replace(" ", "-")))
    largest = pack(bytes(MAX_FRAME_BYTES))  # each is one that may be
    SegmentFolder(make_run(tmp_path, "many")).packed(1).write_bytes(largest * 50 + b"junk")
    SegmentFolder(tmp_path / "runs/many/events.jsonl").index_path(1).unlink()
    make_run(tmp_path, "empty-lines").write_bytes(b"\n" * (8 << 20))
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["segments", "postmortem", "cache"])
def test_folder_that_is_a_link_is_not_written_to(tmp_path: Path, name: str) -> None:
    """Before, the start removed the files of the other folder whose names begin with a full stop."""
    with RunFolder.claim("r", home=tmp_path) as run:
        pass
    other = tmp_path / "other"
    other.mkdir()
    (other / ".profile").write_text("mine")
    (run.path / name).symlink_to(other)
    with pytest.raises(FolderError, match=f"{name} is a link, and is not followed; move it away"):
        RunFolder.claim("r", home=tmp_path)
    assert (other / ".profile").read_text() == "mine"


def test_journal_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "events.jsonl").symlink_to(other)
    with pytest.raises(FolderError, match=r"cannot open the journal .* symbolic links"):
        Journal(tmp_path / "events.jsonl")
    folder = SegmentFolder(tmp_path / "events.jsonl")
    folder.path.mkdir()
    folder.raw(1).symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        Compactor(folder, keep_bytes=0)
    assert other.read_text() == "mine"
