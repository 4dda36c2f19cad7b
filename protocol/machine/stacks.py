"""What every thread of this process is doing: its Python frames, and the CPU time that it has had."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from types import FrameType

from esper_overwatch.protocol.messages.results import ThreadStack

MAX_FRAMES = 64
"""Innermost frames of a thread; older ones are left out."""
MAX_THREADS = 64
_OWN_PARENT = str(Path(__file__).absolute().parents[3])
"""Of a checkout that is installed in place, Python's path does not have it."""


def read_stacks() -> list[ThreadStack]:
    """The threads that Python knows, the main one first.

    A thread within a native function shows the Python frame that called it.
    """
    frames = sys._current_frames()
    main = threading.main_thread()
    threads = sorted(threading.enumerate(), key=lambda thread: (thread is not main, thread.name))
    found = []
    for thread in threads[:MAX_THREADS]:
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            id_, frames_ = thread.native_id or 0, _frames_of(frame)
            found.append(ThreadStack(id=id_, name=thread.name, cpu_us=_cpu_us(id_), frames=frames_))
    return found


def _frames_of(frame: FrameType) -> list[str]:
    """The outermost first."""
    found: list[str] = []
    place: FrameType | None = frame
    while place is not None and len(found) < MAX_FRAMES:
        code = place.f_code
        found.append(f"{_short(code.co_filename)}:{place.f_lineno or 0} {code.co_qualname}")
        place = place.f_back
    return found[::-1]


@functools.cache
def _short(path: str) -> str:
    """A file's path without the folder in which Python has found its package."""
    for folder in sorted({*sys.path, _OWN_PARENT}, key=len, reverse=True):
        if folder and path.startswith(folder + "/"):
            return path[len(folder) + 1 :]
    return path


def _cpu_us(thread: int) -> int:
    """CPU time of a thread in microseconds; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) // 1000
    except (OSError, ValueError, IndexError):
        return 0
