"""Accepted commands on their way from the I/O thread to the trainer."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from protocol.messages.commands import Params

MAX_MAILBOX_COMMANDS = 64


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
    received: int
    """Wall time, microseconds."""


class Mailbox:
    """Accepted commands, from the I/O thread to the trainer."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Event()

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: Command) -> None:
        """Hand over one command; the caller has checked that there is room."""
        self._commands.append(command)
        self._arrived.set()

    def poll(self) -> list[Command]:
        """All that arrived since, oldest first; one truth test where there is nothing."""
        if not self._commands:
            return []
        self._arrived.clear()
        taken = []
        while self._commands:
            taken.append(self._commands.popleft())
        return taken

    def wait(self, timeout: float) -> bool:
        """Sleep until a command is there, at most `timeout` seconds; says whether one is."""
        self._arrived.wait(timeout)
        return bool(self._commands)
