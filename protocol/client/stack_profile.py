"""A sampled profile of a run's threads, from outside: their stacks, some times a second, as one tree."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .client import Client

SAMPLES_PER_SECOND = 20.0
MIN_SHARE = 0.02
"""Less than this share of a thread's samples is left out of the tree."""


@dataclass
class FrameNode:
    """A function below those that have called it."""

    name: str
    """`FUNCTION (FILE)`."""
    count: int = 0
    """Samples that have it."""
    lines: Counter[int] = field(default_factory=Counter)
    """Line numbers that were seen."""
    children: dict[str, FrameNode] = field(default_factory=dict)


@dataclass
class ThreadProfile:
    """What one thread was seen to do."""

    name: str
    root: FrameNode = field(default_factory=lambda: FrameNode(""))
    first_cpu_us: int = 0
    last_cpu_us: int = 0


@dataclass
class StackProfile:
    """What all threads were seen to do, over some seconds."""

    seconds: float = 0.0
    threads: dict[object, ThreadProfile] = field(default_factory=dict)
    """By their number."""

    def add(self, stacks: list[dict[str, object]]) -> None:
        """Add one look, as `Client.stacks` gives it."""
        for stack in stacks:
            id_, cpu_us, frames = stack["id"], stack["cpu_us"], stack["frames"]
            assert isinstance(cpu_us, int)
            assert isinstance(frames, list)
            thread = self.threads.get(id_)
            if thread is None:
                thread = self.threads[id_] = ThreadProfile(str(stack["name"]), first_cpu_us=cpu_us)
            thread.last_cpu_us = cpu_us
            node = thread.root
            node.count += 1
            for frame in frames:
                place, _, function = str(frame).rpartition(" ")
                file, _, line = place.rpartition(":")
                key = f"{function} ({file})"
                node = node.children.setdefault(key, FrameNode(key))
                node.count += 1
                node.lines[int(line)] += 1

    def busy_share(self, thread: ThreadProfile) -> float:
        """CPU time of a thread over the time that passed, about 0 to 1."""
        return (thread.last_cpu_us - thread.first_cpu_us) / max(1.0, 1e6 * self.seconds)

    def folded(self) -> Iterator[str]:
        """A line for each stack, `THREAD;FUNCTION;…;FUNCTION COUNT`, as flame graph tools read them."""
        for thread in self.threads.values():
            yield from _folded(thread.root, thread.name)

    def tree(self, min_share: float = MIN_SHARE) -> Iterator[str]:
        """A line for each function below its caller, with its share of the thread's samples.

        Busy threads come first. A function that did nothing but call the next one is left out.
        """
        for thread in sorted(self.threads.values(), key=self.busy_share, reverse=True):
            yield f"{thread.name}: {self.busy_share(thread):.0%} of a core, {thread.root.count} samples"
            yield from _tree(thread.root, thread.root.count, min_share, 1)


def watch_stacks(client: Client, seconds: float) -> StackProfile:
    """Look at a run's threads for some seconds; the run goes on.

    Args:
        client: of the run; only its daemon's I/O thread is asked, so that a loop that hangs is seen, too.
        seconds: how long.

    Raises:
        EsperError: the daemon does not answer, or is of a version without `stacks`.
    """
    profile, begun = StackProfile(), time.monotonic()
    next_look = begun
    while True:
        profile.add(client.stacks())
        now = time.monotonic()
        profile.seconds = now - begun
        if profile.seconds >= seconds:
            return profile
        next_look = max(now, next_look + 1 / SAMPLES_PER_SECOND)
        time.sleep(next_look - now)


def _folded(node: FrameNode, path: str) -> Iterator[str]:
    own = node.count - sum(child.count for child in node.children.values())
    if own:
        yield f"{path} {own}"
    for child in node.children.values():
        yield from _folded(child, f"{path};{child.name}")


def _tree(node: FrameNode, total: int, min_share: float, depth: int) -> Iterator[str]:
    for child in sorted(node.children.values(), key=lambda child: -child.count):
        if child.count < min_share * total:
            break
        while [below.count for below in child.children.values()] == [child.count]:
            (child,) = child.children.values()  # of functions that only call the next one, the last is shown
        ((line, _),) = child.lines.most_common(1)
        yield f"{child.count / total:5.0%} {' ' * depth}{child.name[:-1]}:{line})"
        yield from _tree(child, total, min_share, depth + 1)
