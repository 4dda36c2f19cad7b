"""A start that takes long says what it is doing, whether it waits for data or for hosts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.daemon import daemon, start_progress
from esper_overwatch.trainer.daemon.daemon import run_daemon
from tests.protocol.harness import until


class Slow:
    """Takes until its line is on the terminal, then fails; in the place of what may take minutes."""

    def __init__(self, capfd: pytest.CaptureFixture[str], line: str) -> None:
        self._capfd, self._line = capfd, line
        self.printed = ""

    def __call__(self, *args: Any, **options: Any) -> Any:
        until(self._is_told)
        raise EsperError("it broke in the end")

    def _is_told(self) -> bool:
        self.printed += self._capfd.readouterr().err
        return self.printed.count(self._line) >= 2


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("load_task", "esper-daemon: loading digits: "),
        ("build_model", "esper-daemon: building a host: "),
        ("Daemon", "esper-daemon: building 4 hosts: "),
    ],
)
def test_slow_start_says_what_it_is_doing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    step: str,
    line: str,
) -> None:
    monkeypatch.setattr(start_progress, "INTERVAL_SECONDS", 0.02)
    slow = Slow(capfd, line)
    monkeypatch.setattr(daemon, step, slow)
    with pytest.raises(EsperError, match="it broke in the end"):
        run_daemon(name="x", resume=None, file=None, sets=["envs.count=4", "ppo.minibatches=2"])
    assert slow.printed.count(line) >= 2
    assert not any(thread.name == "esper-start" for thread in threading.enumerate())
    assert not (tmp_path / "home" / "runs" / "x").exists()
