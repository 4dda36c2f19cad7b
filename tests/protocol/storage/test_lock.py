"""The lock of a run: one holder, who keeps it whatever else is done with the file."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.storage.lock import Lock, LockHeld, holder_of

TRY = """
import sys
from pathlib import Path
from esper_overwatch.protocol.storage.lock import Lock, LockHeld
try:
    Lock(Path(sys.argv[1]))
except LockHeld as held:
    print(held.holder.pid)
"""


def holder_seen_by_another(path: Path) -> int | None:
    """Whose lock keeps another process from taking it; None where it can be had."""
    command = [sys.executable, "-c", TRY, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(printed) if printed else None


def test_one_process_holds_it_and_tells_who(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    lock = Lock(path)
    holder = holder_of(path)
    assert holder is not None
    assert holder.pid == os.getpid()
    assert holder.since > 0
    with pytest.raises(LockHeld, match=f"held by pid {os.getpid()}"):
        Lock(path)
    assert holder_seen_by_another(path) == os.getpid()
    lock.release()
    assert holder_of(path) is None
    assert holder_seen_by_another(path) is None


def test_whoever_reads_the_file_does_not_take_the_lock_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lock = Lock(tmp_path / "run" / "lock")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "run" / "lock").read_bytes()
    assert holder_seen_by_another(tmp_path / "run" / "lock") == os.getpid()
    lock.release()


def test_a_published_run_that_is_copied_has_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    with publish("copied") as run:
        run.log(loss=1.0)

        def copy(source: str, to: str) -> str:
            with contextlib.suppress(FileNotFoundError):  # a file that was being replaced
                shutil.copy2(source, to)
            return to

        shutil.copytree(run.path, tmp_path / "copy", copy_function=copy)
        assert holder_seen_by_another(run.path / "lock") == os.getpid()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path)
    context = multiprocessing.get_context("fork")
    ends, theirs = context.Pipe(), context.Pipe()

    def live() -> None:
        theirs[1].send("here")
        ends[0].recv()
        lock.release()  # which it does not have

    child = context.Process(target=live, daemon=True)
    child.start()
    assert theirs[0].recv() == "here"
    assert holder_seen_by_another(path) == os.getpid()
    lock.release()
    assert holder_seen_by_another(path) is None
    ends[1].send("end")
    child.join()
    assert child.exitcode == 0


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        Lock(tmp_path / "lock")
    assert holder_of(tmp_path / "lock") is None
    assert target.read_text() == "content"
