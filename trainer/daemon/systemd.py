"""systemd's side of the daemon's life: readiness, watchdog, a stop that may take its time; and the unit.

The watchdog is fed by what the *trainer* does, not by a thread that happens to live: a process whose training
hangs is ended and started again.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

from protocol.messages.headers import TrainerBeat

POLL_SECONDS = 5.0
MAX_SILENCE_SECONDS = 600.0
"""An end that shows no sign of life for so long is not waited for any longer."""
WATCHDOG_SECONDS = 300


class Notifier:
    """Reports the daemon's state to the service manager; does nothing where there is none.

    Args:
        beat: state, clock and age of the trainer's last sign of life.
    """

    def __init__(self, beat: Callable[[], TrainerBeat]) -> None:
        self._beat = beat
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog()
        self._interval = (
            min(POLL_SECONDS, self._watchdog_seconds / 3) if self._watchdog_seconds else POLL_SECONDS
        )
        self._stopping = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ready(self) -> None:
        """The daemon answers and trains; from now on the watchdog is fed."""
        if self._address:
            self._notify("READY=1", f"MAINPID={os.getpid()}", self._status())
            self._thread = threading.Thread(target=self._main, name="esper-systemd", daemon=True)
            self._thread.start()

    def reloaded(self) -> None:
        """Report that SIGHUP has been handled."""
        if self._address:
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._notify("RELOADING=1", f"MONOTONIC_USEC={now}")
            self._notify("READY=1")

    def stopping(self) -> None:
        """Training is over; what is left takes seconds."""
        if self._thread is not None:
            self._say_stopping()

    def close(self) -> None:
        """The process ends now."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(self._interval)

    def _main(self) -> None:
        while not self._closing.wait(self._interval):
            beat = self._beat()
            if beat.state == "STOPPING":
                self._say_stopping()
            age = beat.beat_age_ms / 1000
            words = [self._status()]
            if self._watchdog_seconds and age < (
                MAX_SILENCE_SECONDS if self._stopping else self._watchdog_seconds
            ):
                words.append("WATCHDOG=1")
            if self._stopping and age < MAX_SILENCE_SECONDS:
                words.append(f"EXTEND_TIMEOUT_USEC={int(self._interval * 6e6)}")
            self._notify(*words)

    def _say_stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(self._interval * 6e6)}")

    def _status(self) -> str:
        beat = self._beat()
        return f"STATUS={beat.state}, round {beat.round}, epoch {beat.epoch}"

    def _notify(self, *words: str) -> None:
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.sendto("\n".join(words).encode(), address)
        except OSError:
            return  # a manager that went away asks for nothing any more


def _watchdog() -> float:
    """Seconds after which systemd misses a sign of life; 0.0 where it does not wait for any."""
    microseconds = os.environ.pop("WATCHDOG_USEC", "")
    pid = os.environ.pop("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(microseconds) / 1e6


def render_unit(name: str, arguments: Sequence[str]) -> str:
    """A user unit that keeps the run `name` alive over crashes and restarts of the machine."""
    command = [sys.executable, "-m", "trainer", "start", name, "--or-resume", *arguments]
    home = os.environ.get("ESPER_HOME")
    environment = f"Environment={_quoted(f'ESPER_HOME={home}')}\n" if home else ""
    return f"""\
# esper-daemon systemd {name} > ~/.config/systemd/user/esper-{name}.service
# systemctl --user daemon-reload && systemctl --user enable --now esper-{name}
# loginctl enable-linger     (so that it starts with the machine)
[Unit]
Description=Esper Overwatch: run {name}

[Service]
Type=notify
ExecStart={" ".join(map(_quoted, command))}
ExecReload=/bin/kill -HUP $MAINPID
{environment}Restart=on-failure
RestartSec=5
# wrong usage, no such run, a taken name, a wrong configuration, a folder: again would be the same
RestartPreventExitStatus=2 3 8 9 10
SuccessExitStatus=130
WatchdogSec={WATCHDOG_SECONDS}
TimeoutStartSec=600
TimeoutStopSec=90
KillMode=mixed
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """One word of a command line in a unit: systemd expands `%` and `$` and splits at spaces."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = "".join(c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode()) for c in plain)
    return plain if plain and not set(plain) & set(" '\"\\;") else f'"{plain}"'
