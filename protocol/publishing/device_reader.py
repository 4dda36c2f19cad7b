"""A thread for what takes long, such as values on a device: where the device hangs, only these values do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def is_on_device(value: Any) -> bool:
    """Whether to read a logged value can take as long as its device likes."""
    return str(getattr(value, "device", "cpu")).partition(":")[0].lower() != "cpu"


class DeviceReader(Generic[T]):
    """Reads what it is given, one after the other; safe from any thread.

    Args:
        read: called with each; must not raise.
        name: of the thread.
    """

    def __init__(self, read: Callable[[T], None], name: str = "esper-devices") -> None:
        self._read, self._name = read, name
        self._queue: SimpleQueue[T] = SimpleQueue()
        self._idle = threading.Condition()
        self._waiting = 0
        self._thread: threading.Thread | None = None

    def put(self, item: T) -> None:
        """Have it read; returns at once."""
        with self._idle:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(item)

    def wait(self, timeout: float) -> int:
        """Wait until all is read; how many are not, after so many seconds."""
        end = time.monotonic() + timeout
        with self._idle:
            while self._waiting and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            return self._waiting

    def _run(self) -> None:
        while True:
            self._read(self._queue.get())
            with self._idle:
                self._waiting -= 1
                self._idle.notify_all()
