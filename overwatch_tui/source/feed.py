"""Where events come from: a live run or a recorded one; the same items, decoded by the same codec."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from protocol import journal
from protocol.errors import EsperError, RunNotFound
from protocol.events import RunStarted
from protocol.items import Item, Reset
from protocol.runs import find_run
from protocol.subscriber import Subscriber
from protocol.target import first_target, source_of
from protocol.version import __version__
from protocol.wire import Event, WireError

from .describe import span
from .history import SECOND
from .link import Link

CLOCKS_DIFFER = 2 * SECOND
"""A smaller difference to the daemon's clock is taken for the way of the message."""
LONGEST_PAUSE = 10 * SECOND
"""A replay jumps over longer silences."""
BUDGET_S = 0.01


class Feed(Protocol):
    """One source of items."""

    @property
    def run_id(self) -> str | None:
        """Of the run that is followed, once known."""

    @property
    def boot(self) -> str | None:
        """Of the daemon that is followed."""

    @property
    def thresholds(self) -> dict[str, dict[str, Any]]:
        """The table that the daemon sent; empty before that."""

    def drain(self) -> list[Item]:
        """What has come since the last call; never blocks."""

    def now(self) -> int:
        """The daemon's wall time, microseconds."""

    def fill(self, link: Link) -> None:
        """Write down how the link stands."""

    def request(self, method: str, params: dict[str, Any]) -> str:
        """Send a command; its reply comes as an item. Returns its id."""

    def close(self) -> None:
        """Let go of sockets and files."""


class LiveFeed:
    """A daemon, over its sockets.

    Args:
        name: a run's name, id or the beginning of one; None for the newest live one. Of another machine:
            `ssh://user@host/name`.
        thin: the newest metrics five times a second instead of all of them.

    Raises:
        EsperError: another machine cannot be reached. Where it has no such run, waits for it.
    """

    def __init__(self, name: str | None, *, thin: bool = False) -> None:
        self._source = source_of(name)
        if self._source.remote:
            self._reach()
        self._subscriber = Subscriber(source=self._source, client=f"esper-tui/{__version__}", thin=thin)
        self._name = name
        self._offset = 0
        self._heartbeat: object = None

    def _reach(self) -> None:
        """Before there is a screen: a passphrase may be asked for, and an error is better read here."""
        try:
            first_target(self._source)
        except RunNotFound:
            return
        except BaseException:
            self._source.close()
            raise

    @property
    def run_id(self) -> str | None:
        run = self._subscriber.run
        return run.id if run is not None else None

    @property
    def boot(self) -> str | None:
        return self._subscriber.boot

    @property
    def thresholds(self) -> dict[str, dict[str, Any]]:
        hello = self._subscriber.hello
        return hello.get("thresholds", {}) if hello else {}

    def drain(self) -> list[Item]:
        items = self._subscriber.drain(BUDGET_S)
        heartbeat = self._subscriber.heartbeat
        if heartbeat is not None and heartbeat is not self._heartbeat:
            self._heartbeat = heartbeat
            offset = heartbeat.ts - time.time_ns() // 1000
            self._offset = offset if abs(offset) > CLOCKS_DIFFER else 0
        return items

    def now(self) -> int:
        return time.time_ns() // 1000 + self._offset

    def fill(self, link: Link) -> None:
        source, stats = self._subscriber, self._subscriber.stats
        link.state, link.age = source.state, source.age
        link.name = source.run.name if source.run is not None else self._name
        link.gaps, link.repaired, link.skipped = stats.gaps, stats.repaired, stats.skipped
        link.bad, link.last_bad = stats.bad, stats.last_bad
        link.events, link.bytes = stats.events, stats.bytes
        heartbeat = source.heartbeat
        if heartbeat is not None:
            link.dropped, link.clients = heartbeat.dropped, heartbeat.clients
            link.trainer = heartbeat.trainer.state
            link.beat_age = heartbeat.trainer.beat_age_ms / 1000 + (source.age or 0.0)
        link.said = self._said(link)

    def _said(self, link: Link) -> str:
        source = self._subscriber
        match source.state:
            case "searching":
                return source.problem or "looking for a live run"
            case "connecting":
                return source.problem or f"connecting to {link.name}"
            case "stale" | "lost":
                since = "" if source.age is None else f" for {span(source.age)}"
                return f"no answer{since}; {source.problem or 'still trying'}"
            case "ended":
                bye = source.heartbeat.bye if source.heartbeat is not None else None
                return f"run {link.name} has ended{f': {bye}' if bye else ''}"
        return source.problem or ""

    def request(self, method: str, params: dict[str, Any]) -> str:
        return self._subscriber.request(method, params)

    def close(self) -> None:
        self._subscriber.close()
        self._source.close()


class ReplayFeed:
    """A run's journal, played at its own pace or faster.

    Args:
        path: of `events.jsonl`.
        speed: 1 = as it was; infinity = all at once.

    Raises:
        EsperError: the file cannot be read, or holds no event.
    """

    def __init__(self, path: Path, speed: float) -> None:
        self._path = path
        self._speed = speed
        self._bad = 0
        self._last_bad = ""
        self._events: Iterator[Event] = journal.read(path, on_bad=self._note_bad)
        self._next = next(self._events, None)
        if self._next is None:
            raise EsperError(f"{path}: no event in it; is it a run's events.jsonl?")
        self._clock = self._next.ts
        self._wall = time.monotonic()
        self._count = 0
        self._boot: str | None = None
        self._run: str | None = None

    def _note_bad(self, number: int, error: WireError) -> None:
        self._bad += 1
        self._last_bad = f"line {number}: {error}"

    @property
    def run_id(self) -> str | None:
        return self._run

    @property
    def boot(self) -> str | None:
        return self._boot

    @property
    def thresholds(self) -> dict[str, dict[str, Any]]:
        return {}

    @property
    def ended(self) -> bool:
        """Whether everything has been played."""
        return self._next is None

    def drain(self) -> list[Item]:
        wall = time.monotonic()
        passed, self._wall = wall - self._wall, wall
        everything = math.isinf(self._speed)
        if not everything and self._next is not None:
            self._clock += int(passed * self._speed * SECOND)
        if self._next is not None and self._next.ts > self._clock + LONGEST_PAUSE:
            self._clock = self._next.ts
        items: list[Item] = []
        while self._next is not None and (everything or self._next.ts <= self._clock):
            self._give(self._next, items)
            self._next = next(self._events, None)
            if time.monotonic() - wall > BUDGET_S:
                break
        return items

    def _give(self, event: Event, items: list[Item]) -> None:
        started = event.data
        if isinstance(started, RunStarted) and started.boot != self._boot:
            self._boot, self._run = started.boot, started.run
            items.append(Reset(f"run {started.name}, boot {started.boot}"))
        self._clock = max(self._clock, event.ts)
        self._count += 1
        items.append(event)

    def now(self) -> int:
        return self._clock

    def fill(self, link: Link) -> None:
        link.state = "replay" if self._next is not None else "ended"
        link.name = self._path.parent.name
        link.replay_speed = None if math.isinf(self._speed) else self._speed
        link.events, link.bad, link.last_bad = self._count, self._bad, self._last_bad
        link.commands = False
        link.said = "" if self._next is not None else "the recording is over"

    def request(self, method: str, params: dict[str, Any]) -> str:
        raise EsperError(f"a recording takes no commands ({method} {params})")

    def close(self) -> None:
        self._events = iter(())


def journal_of(run: str) -> Path:
    """The journal meant by `--replay`: a file, a run's folder, or a run's name.

    Raises:
        RunNotFound: neither a file nor a run.
    """
    path = Path(run).expanduser()
    if path.is_dir() and (path / "events.jsonl").exists():
        return path / "events.jsonl"
    if path.is_file():
        return path
    return find_run(run).path / "events.jsonl"
