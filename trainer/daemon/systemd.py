"""systemd's side of the daemon's life: readiness, watchdog, a stop that may take its time; and the unit.

The watchdog is fed by what the *trainer* does, not by a thread that happens to live: a process whose training
hangs is ended and started again.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from esper_overwatch.protocol.errors import DISK_EXIT, FINAL_EXITS
from esper_overwatch.protocol.messages.headers import TrainerBeat
from esper_overwatch.protocol.storage.folders import esper_home

POLL_SECONDS = 5.0
MAX_SILENCE_SECONDS = 600.0
"""An end that shows no sign of life for so long is not waited for any longer."""
WATCHDOG_SECONDS = 300
MAX_UNSENT = 16
"""Messages that wait for a manager that does not read; the newest say what the older ones said."""


class Notifier:
    """Reports the daemon's state to the service manager; does nothing where there is none.

    A thread of its own sends, and never waits: a manager that does not read holds up neither the training nor
    its end. What the manager's full queue refuses is sent at the next turn.

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
        self._is_training_over = self._stopping = False
        self._orders: queue.SimpleQueue[tuple[str, ...] | None] = queue.SimpleQueue()
        """Messages for the thread, None to end it; unlike an event it may be used in a signal handler."""
        self._unsent: deque[str] = deque(maxlen=MAX_UNSENT)
        self._thread: threading.Thread | None = None

    def ready(self) -> None:
        """The daemon answers and trains; from now on the watchdog is fed."""
        if self._address:
            self._orders.put((f"READY=1\nMAINPID={os.getpid()}\n{self._status()}",))
            self._thread = threading.Thread(target=self._main, name="esper-systemd", daemon=True)
            self._thread.start()

    def reloaded(self) -> None:
        """Report that SIGHUP has been handled; safe in a signal handler."""
        if self._thread is not None:
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._orders.put((f"RELOADING=1\nMONOTONIC_USEC={now}", "READY=1"))

    def stopping(self) -> None:
        """Training is over; what is left takes seconds."""
        self._is_training_over = True
        self._orders.put(())

    def close(self) -> None:
        """The process ends now."""
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join(self._interval)

    def _main(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            while (messages := self._next_order()) is not None:
                self._unsent.extend(messages)
                if self._orders.empty():
                    self._note_end()
                if self._send_unsent(manager):
                    self._send(manager, self._signs_of_life())
            self._note_end()
            self._send_unsent(manager)

    def _next_order(self) -> tuple[str, ...] | None:
        """The next messages; none after an interval."""
        try:
            return self._orders.get(timeout=self._interval)
        except queue.Empty:
            return ()

    def _note_end(self) -> None:
        """Once, where the run stops: after what was ordered before."""
        if not self._stopping and (self._is_training_over or self._beat().state == "STOPPING"):
            self._stopping = True
            self._unsent.append(f"STOPPING=1\n{self._more_time()}")

    def _signs_of_life(self) -> str:
        age = self._beat().beat_age_ms / 1000
        words = [self._status()]
        if self._watchdog_seconds and age < (
            MAX_SILENCE_SECONDS if self._stopping else self._watchdog_seconds
        ):
            words.append("WATCHDOG=1")
        if self._stopping and age < MAX_SILENCE_SECONDS:
            words.append(self._more_time())
        return "\n".join(words)

    def _more_time(self) -> str:
        return f"EXTEND_TIMEOUT_USEC={int(self._interval * 6e6)}"

    def _status(self) -> str:
        beat = self._beat()
        return f"STATUS={beat.state}, round {beat.round}, epoch {beat.epoch}"

    def _send_unsent(self, manager: socket.socket) -> bool:
        """Send what waits, in order; says whether nothing waits any more."""
        while self._unsent:
            if not self._send(manager, self._unsent[0]):
                return False
            self._unsent.popleft()
        return True

    def _send(self, manager: socket.socket, message: str) -> bool:
        """Say whether the manager's queue had room; one that went away asks for nothing any more."""
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            manager.sendto(message.encode(), address)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def _watchdog() -> float:
    """Seconds after which systemd misses a sign of life; 0.0 where it does not wait for any."""
    microseconds = os.environ.pop("WATCHDOG_USEC", "")
    pid = os.environ.pop("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(microseconds) / 1e6


def render_unit(name: str, arguments: Sequence[str]) -> str:
    """A user unit that keeps the run `name` alive over crashes and restarts of the machine."""
    finals = " ".join(map(str, FINAL_EXITS))
    return _unit(
        ("systemd", name),
        f"esper-{name}",
        f"run {name}",
        ("start", name, "--or-resume", *arguments),
        f"""\
Type=notify
ExecReload=/bin/kill -HUP $MAINPID
# wrong usage, no such run, a taken name, a wrong configuration, a folder: again would be the same
# (but {DISK_EXIT}, a disk that is full, may have room then)
RestartPreventExitStatus={finals}
WatchdogSec={WATCHDOG_SECONDS}
TimeoutStartSec=600
""",
    )


def render_queue_unit(arguments: Sequence[str]) -> str:
    """A user unit that works the queue off, over crashes and restarts of the machine."""
    command = ("queue", "run", "--stay", *arguments)
    own = "Type=exec\nRestartPreventExitStatus=2 8 10\n"
    return _unit(("queue", "systemd", *arguments), "esper-queue", "the queue of trainings", command, own)


def _unit(made_by: Sequence[str], service: str, what: str, words: Sequence[str], own: str) -> str:
    """A user unit.

    Args:
        made_by: command that prints it.
        service: its name.
        what: description.
        words: command line after `esper-daemon`.
        own: lines of its section Service beside those of all.
    """
    command = [sys.executable, "-P", "-m", "esper_overwatch.trainer", *words]
    home = f"ESPER_HOME={esper_home()}" if os.environ.get("ESPER_HOME") else ""
    environment = f"Environment={_quoted(home).replace('$$', '$')}\n" if home else ""  # where `$` is a `$`
    return f"""\
# esper-daemon {" ".join(made_by)} > ~/.config/systemd/user/{service}.service
# systemctl --user daemon-reload && systemctl --user enable --now {service}
# loginctl enable-linger     (so that it starts with the machine)
[Unit]
Description=Esper Overwatch: {what}

[Service]
ExecStart={" ".join(map(_quoted, command))}
{own}{environment}Restart=on-failure
RestartSec=5
SuccessExitStatus=130
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
