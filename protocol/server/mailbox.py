"""Accepted commands on their way from the I/O thread to the trainer."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from esper_overwatch.protocol.messages.commands import Params

MAX_MAILBOX_COMMANDS = 64
URGENT_COMMANDS = frozenset({"stop", "resume", "op.cancel"})
"""They end the run or the waiting of others, so those that wait must not keep them out."""


@dataclass(frozen=True)
class Command:
    """An accepted command on its way to the trainer."""

    id: str
    method: str
    params: Params
    client: str
    uid: int | None
    pid: int | None
    reason: str
    received: float
    """On the monotonic clock."""

    @property
    def author(self) -> str:
        """Who sent it, for people: the user, where known, and the client."""
        return self.client if self.uid is None else f"uid {self.uid} ({self.client})"


class Mailbox:
    """Accepted commands, from the I/O thread to the trainer.

    Attributes:
        num_kept: that a loop has polled and keeps waiting, until it asks for them.
    """

    def __init__(self) -> None:
        self.num_kept = 0
        self._commands: deque[Command] = deque()
        self._arrived = threading.Event()

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def num_waiting(self) -> int:
        """Commands that wait: those not polled yet, and those kept."""
        return len(self._commands) + self.num_kept  # in the order opposite to `poll`: never too few

    def has_room(self, method: str) -> bool:
        """True if one more command may wait; of the urgent ones 64 more may."""
        more = MAX_MAILBOX_COMMANDS if method in URGENT_COMMANDS else 0
        return self.num_waiting < MAX_MAILBOX_COMMANDS + more

    def put(self, command: Command) -> None:
        """Hand over one command; the caller has checked that there is room."""
        self._commands.append(command)
        self._arrived.set()

    def poll(self, *, keep: bool = False) -> list[Command]:
        """All that arrived since, oldest first; one truth test where there is nothing.

        Args:
            keep: count each in `num_kept`, from which the caller takes it when it waits no longer.
        """
        if not self._commands:
            return []
        self._arrived.clear()
        taken = []
        while self._commands:
            self.num_kept += keep
            taken.append(self._commands.popleft())
        return taken

    def wait(self, timeout: float) -> bool:
        """Sleep until a command is there, at most `timeout` seconds; says whether one is."""
        self._arrived.wait(timeout)
        return bool(self._commands)
