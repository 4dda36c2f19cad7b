"""Who may read the log, and what is in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.messages.events import LogLine
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.protocol.storage.folders import open_private
from esper_overwatch.trainer.daemon import logging_setup
from esper_overwatch.trainer.telemetry.log_lines import IN_EVENT


def test_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    """A new one, and one that an earlier version made for all to read; one that is a link is refused."""
    old = os.umask(0)
    try:
        for name in ("new.log", "old.log"):
            path = tmp_path / name
            if name == "old.log":
                path.touch(0o644)
            with open(path, "a", encoding="utf-8", opener=open_private) as file:
                file.write("x")
            assert path.stat().st_mode & 0o777 == 0o600
        (tmp_path / "link.log").symlink_to(path)
        with pytest.raises(OSError, match="symbolic link"):
            open(tmp_path / "link.log", "a", opener=open_private).close()
    finally:
        os.umask(old)


class Wordless:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Emitter]]:
    """A daemon's log, whose handlers are taken off again."""
    root, emitter, path = logging.getLogger(), Emitter(), tmp_path / "daemon.log"
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging_setup.faulthandler, "enable", lambda _: None)
    monkeypatch.setattr(logging_setup.signal, "signal", lambda *_: None)
    monkeypatch.setattr(logging, "captureWarnings", lambda _: None)
    with logging_setup.set_up(path, emitter, terminal=False):
        yield path, emitter


@pytest.mark.parametrize(
    ("message", "args", "found"),
    [
        ("%d epochs", ("x",), "malformed log record: '%d epochs', 'x'"),
        ("done", (1, 2), "malformed log record: 'done', 1, 2"),
        ("%(name)s", ({"a": 1},), "malformed log record: '%(name)s', {'a': 1}"),
        ("it is %s", (Wordless(),), "malformed log record: 'it is %s', <Wordless>"),
        (Wordless(), (), "malformed log record: <Wordless>"),
    ],
)
def test_malformed_record_is_told_in_one_line(
    log: tuple[Path, Emitter],
    message: Any,
    args: tuple[Any, ...],
    found: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Before, it ended what logged it, and the log had a stack of logging itself instead."""
    path, emitter = log
    logging.getLogger("library").warning(message, *args)
    told = [emitted.event for emitted in emitter.drain(10)]
    assert told == [LogLine(level="WARNING", logger="library", message=found)]
    (line,) = path.read_text().splitlines()
    assert line.endswith(f"WARNING library: {found}")
    assert capfd.readouterr().err == ""


def test_record_with_a_wrong_exception_is_told(log: tuple[Path, Emitter]) -> None:
    path, emitter = log
    logging.getLogger("library").warning("failed", exc_info=("no", "such", "error"))  # type: ignore[arg-type]
    told = [emitted.event for emitted in emitter.drain(10)]
    assert told == [LogLine(level="WARNING", logger="library", message="failed")]
    assert len(path.read_text().splitlines()) == 1


def test_what_an_event_says_is_for_the_file_alone(log: tuple[Path, Emitter]) -> None:
    """Before, whoever watched read each round twice: as `round.completed` and as the line about it."""
    path, emitter = log
    logging.getLogger("loop").warning("round 1: return 0.5", extra=IN_EVENT)
    assert emitter.drain(10) == []
    assert path.read_text().endswith("WARNING loop: round 1: return 0.5\n")
