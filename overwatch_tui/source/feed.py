"""Feeds of events: live runs here, recorded ones in `replay`; both give the same items."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol

from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.protocol.client.items import Item
from esper_overwatch.protocol.client.sources import make_target_source, wait_for_target
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError, RunNotFound
from esper_overwatch.protocol.messages.events import lease_fingerprint
from esper_overwatch.protocol.version import __version__

from .link_status import LinkStatus, Outcome

MIN_CLOCK_OFFSET = 2 * SECOND
"""A smaller difference to the daemon's clock is taken for the way of the message."""
DRAIN_SECONDS = 0.01
LATE_SECONDS = 1.0
"""So long a daemon may take to answer before its process is looked at, which costs a start 20 ms of CPU."""
_LEASES: dict[str, str] = {}
"""Leases of this terminal by the daemon's boot: they outlive a look at another run."""


class Feed(Protocol):
    """One source of items.

    Not the client's `EventLog`, which gives events only: the terminal also takes link states and answers.
    """

    @property
    def run_id(self) -> str | None:
        """Id of the run that is followed, once known."""

    @property
    def boot(self) -> str | None:
        """Boot of the daemon that is followed."""

    @property
    def is_caught_up(self) -> bool:
        """True once everything that was received has been handed out."""

    def drain(self) -> list[Item]:
        """Items received since the last call; never blocks."""
        return []

    def now(self) -> int:
        """The daemon's wall time, microseconds."""
        return time.time_ns() // 1000

    def update_link(self, link: LinkStatus) -> None:
        """Fill in the state of the link."""

    def request(self, method: str, params: dict[str, Any]) -> str:
        """Send a command; its reply comes as an item. Returns its id."""

    def close(self) -> None:
        """Close sockets and files."""


class NoFeed(Feed):
    """A feed without events, behind the list of runs until one is opened."""

    run_id: str | None = None
    boot: str | None = None
    is_caught_up = True

    def update_link(self, link: LinkStatus) -> None:
        link.state, link.problem = "searching", "no run is open; R lists them"

    def request(self, method: str, params: dict[str, Any]) -> str:
        raise EsperError(f"no run is open: {method} {params}")

    def close(self) -> None:
        """Nothing to release."""


class LiveFeed:
    """A daemon, over its sockets.

    Args:
        name: a run's name, id or the beginning of one; None for the newest live one. Of another machine:
            `ssh://user@host/name`.
        thin: the newest metrics five times a second instead of all of them.
        remote_daemon: the command of esper-daemon on that machine; None = as the environment says.
        batch: connect in the background, and let ssh ask for nothing: there is a screen already.

    Raises:
        EsperError: another machine cannot be reached. Where it has no such run, waits for it.
    """

    def __init__(
        self,
        name: str | None,
        *,
        thin: bool = False,
        remote_daemon: str | None = None,
        batch: bool = False,
    ) -> None:
        self.is_thin = thin
        _LEASES[""] = os.environ.get("ESPER_LEASE", "")
        self._source = make_target_source(name, remote_daemon=remote_daemon, batch=batch)
        if self._source.is_remote and not batch:
            self._reach()
        self._subscriber = Subscriber(
            source=self._source, client=f"esper-tui/{__version__}", thin=thin, leases=_LEASES
        )
        self._name = name
        self._offset = 0
        self._heartbeat: object = None
        self._outcome = Outcome()
        self._began = time.monotonic()

    def _reach(self) -> None:
        """Connect before there is a screen: ssh may ask for a passphrase, errors are readable here."""
        try:
            wait_for_target(self._source)
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
    def lease(self) -> str:
        """The lease that this terminal commands with; empty = none."""
        return self._subscriber.lease

    @property
    def journal(self) -> Path | None:
        """The run's `events.jsonl`, where it is on this machine."""
        run = self._subscriber.run
        return run.journal if run is not None else None

    @property
    def is_caught_up(self) -> bool:
        return self._subscriber.is_caught_up

    def drain(self) -> list[Item]:
        items = self._subscriber.drain(DRAIN_SECONDS)
        for item in items:
            if isinstance(item, Event):
                self._outcome.take(item)
        heartbeat = self._subscriber.heartbeat
        if heartbeat is not None and heartbeat is not self._heartbeat:
            self._heartbeat = heartbeat
            offset = heartbeat.ts - time.time_ns() // 1000
            self._offset = offset if abs(offset) > MIN_CLOCK_OFFSET else 0
        return items

    def now(self) -> int:
        return time.time_ns() // 1000 + self._offset

    def update_link(self, link: LinkStatus) -> None:
        source, stats = self._subscriber, self._subscriber.stats
        link.state, link.age_seconds = source.state, source.age
        link.name = source.run.name if source.run is not None else self._name
        link.gaps, link.repaired, link.skipped = stats.gaps, stats.repaired, stats.skipped
        link.bad, link.last_bad = stats.bad, stats.last_bad
        link.events, link.bytes = stats.events, stats.bytes
        link.methods = frozenset((source.hello or {}).get("methods", ()))
        link.lease = lease_fingerprint(source.lease)
        heartbeat = source.heartbeat
        if heartbeat is not None:
            link.dropped, link.num_clients = heartbeat.dropped, heartbeat.clients
            link.trainer = heartbeat.trainer.state
            link.trainer_age_seconds = heartbeat.trainer.beat_age_ms / 1000 + (source.age or 0.0)
        link.problem = source.problem or ""
        is_late = link.state == "connecting" and time.monotonic() - self._began > LATE_SECONDS
        if self.journal and source.run is not None and (is_late or link.state in ("stale", "lost")):
            from esper_overwatch.protocol.machine.processes import describe_stop  # loads psutil

            link.problem = link.problem or describe_stop(source.run.pid)
        link.farewell = (heartbeat.bye if heartbeat is not None else None) or ""
        is_gone = link.state == "lost" and self._source.is_gone and link.name is not None
        self._outcome.update_link(link, is_over=is_gone or link.state == "ended", has_died=is_gone)

    def request(self, method: str, params: dict[str, Any]) -> str:
        return self._subscriber.request(method, params)

    def close(self) -> None:
        self._subscriber.close()
        self._source.close()
