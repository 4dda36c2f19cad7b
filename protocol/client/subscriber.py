"""The reader's side of the wire: a run's events in order and without a hole, over restarts of the daemon.

Joining: subscribe → the welcome or a heartbeat shows that the subscriptions are in force → hello → snapshot →
the queued batches from there on. Holes are found by numbers (a lost tail by the heartbeat) and filled by
`replay`. One class for scripts (`events`) and for a screen's timer (`drain`); it never blocks in `drain`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import zmq

from esper_overwatch.protocol.codec.frames import (
    HEARTBEAT_TOPIC,
    TOPICS,
    VIEW_TOPIC,
    decode_batch,
    decode_heartbeat,
    decode_view,
)
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.journal.reader import newest_lines
from esper_overwatch.protocol.messages.commands import Reply
from esper_overwatch.protocol.messages.headers import Window
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.storage.folders import StrPath

from .connection import DaemonConnection
from .endpoint import Target, TargetSource
from .items import Item, LinkChanged, LinkState, Reset, Stats
from .requests import Body, PendingRequest, lines_of, outcome_of
from .sequence import NewestLines, Sequencer
from .sources import make_target_source

MAX_EVENTS_BEHIND = 50_000
MAX_EARLY_BATCHES = 4_096
MAX_READY_LINES = 20_000


class Subscriber(DaemonConnection):
    """Follows one run. Made before any run exists, it waits for one. Not thread-safe.

    Args:
        name: a run's name, id or the beginning of one; None follows the newest live run, and after its end
            the next one. Of another machine: `ssh://user@host/name`.
        streams: which to read.
        client: how it calls itself in the audit events.
        home: instead of `$ESPER_HOME`.
        thin: read `view` in place of `metric` and `trace`: the newest metrics five times a second, with holes
            that are not filled. For links that are too slow for all of them.
        source: finds the run, instead of `name` and `home`; it stays open at `close`.
        leases: those of `request`, as in `PendingRequests`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        streams: Sequence[Stream] = STREAMS,
        client: str = "python",
        home: StrPath | None = None,
        thin: bool = False,
        source: TargetSource | None = None,
        leases: dict[str, str] | None = None,
    ) -> None:
        self._snapshot_streams = tuple(streams)
        self._streams = tuple(s for s in streams if not (thin and s in ("metric", "trace")))
        """Those that are read in full; a snapshot has all that were asked for."""
        self._view = NewestLines() if thin and "metric" in streams else None
        self._owns_source = source is None
        topics = [TOPICS[stream] for stream in self._streams]
        if self._view is not None:
            topics.append(VIEW_TOPIC)
        source = source or make_target_source(name, home)
        super().__init__(source, client=client, topics=(*topics, HEARTBEAT_TOPIC), leases=leases)
        self._phase: Literal["barrier", "hello", "snapshot", "joined"] = "barrier"
        self._sequencers: dict[str, Sequencer] = {}
        self._early: list[tuple[str, int, list[bytes]]] = []
        self._repairing: set[str] = set()
        self._ready: deque[bytes | Item] = deque()
        self._reason = "joined"
        self.state: LinkState = "searching"
        self.windows: dict[str, Window] = {}
        """Windows of the newest view by type, where the subscriber is thin."""
        self.stats = Stats()

    def drain(self, budget_s: float = 0.01) -> list[Item]:
        """Everything that is there by now, in order; never blocks, and stops after about `budget_s`."""
        end = time.monotonic() + budget_s
        self._step()
        while len(self._ready) < MAX_READY_LINES and self._read_one():
            if time.monotonic() > end:
                break
        self._repair()
        self._requests.step()
        self._update_state()
        items: list[Item] = []
        while self._ready:
            item = self._ready.popleft()
            if isinstance(item, bytes):
                self._decode_into(items, item)
            else:
                items.append(item)
            if time.monotonic() > end:
                break
        return items

    def items(self, timeout: float | None = None) -> Iterator[Item]:
        """Items as they come, until the run ends in order or nothing came for `timeout` seconds."""
        quiet_since = time.monotonic()
        while True:
            items = self.drain(0.05)
            if items:
                yield from items
                quiet_since = time.monotonic()
                continue
            if self.state == "ended":
                return
            if timeout is not None and time.monotonic() - quiet_since > timeout:
                return
            self.wait(0.1)

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Events as they come; ends as `items` does."""
        return (item for item in self.items(timeout) if isinstance(item, Event))

    def wait(self, timeout: float) -> None:
        """Sleep until something can be read, at most `timeout` seconds."""
        zmq.select(self.sockets, [], [], self.patience(timeout))

    def patience(self, timeout: float) -> float:
        """Time for which `drain` may be left alone if nothing can be read: less if a request waits."""
        return min(timeout, 0.01) if any(call.sent is None for call in self._requests.pending) else timeout

    @property
    def is_caught_up(self) -> bool:
        """True if the snapshot and all that was received since have been handed out, without a hole."""
        return self._phase == "joined" and not self._ready and not self._repairing

    @property
    def lease(self) -> str:
        """The lease that goes with each request; empty = none."""
        return self._requests.lease

    def request(
        self, method: str, params: dict[str, Any] | None = None, deadline_s: float = 10.0, reason: str = ""
    ) -> str:
        """Ask something; the answer comes as a `RequestOutcome` from `drain`. Never blocks.

        Args:
            method: one of `commands.METHODS`, or a command that the loop of a published run has registered.
            params: its parameters.
            deadline_s: seconds after which it is neither executed nor waited for.
            reason: for the audit event.

        Returns:
            The request's id, which its effect event carries too.
        """
        deadline = time.monotonic() + deadline_s
        return self._requests.submit(
            PendingRequest(method, params or {}, self._take_outcome, deadline, reason)
        )

    @property
    def pending(self) -> list[PendingRequest]:
        """Own requests without an answer, oldest first."""
        return [call for call in self._requests.pending if call.deadline is not None]

    def _take_outcome(self, call: PendingRequest, reply: Reply | None, body: Body) -> None:
        self._ready.append(outcome_of(call, reply, body))

    def close(self) -> None:
        """Close the sockets."""
        super().close()
        if self._owns_source:
            self._source.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_open(self) -> None:
        """The sockets to a daemon are open: nothing is known of its streams."""
        self._sequencers, self._phase = {}, "barrier"
        self._enter("connecting")

    def _on_close(self) -> None:
        """The sockets are closed: what was asked of that daemon is not answered any more."""
        self._early.clear()
        self._repairing.clear()

    def _on_hello(self) -> None:
        run = self.run
        assert run is not None
        boot = f"{'new boot' if self._is_reopened else 'boot'} {self.boot}"
        self._reason = f"run {run.name}, {boot}"
        self._ask_snapshot()

    def _ask_snapshot(self) -> None:
        self._phase = "snapshot"
        params = {"streams": list(self._snapshot_streams)}
        self._requests.submit(PendingRequest("snapshot", params, self._take_snapshot, None))

    def _take_snapshot(self, _: PendingRequest, reply: Reply | None, body: Body) -> None:
        assert reply is not None
        if reply.result is None:
            self._lose_boot()
            return
        self._ready.append(Reset(self._reason))
        self._ready.extend(lines_of(body))
        seq: dict[str, int] = reply.result["seq"]
        for stream, old in self._sequencers.items():
            self.stats.skipped += max(0, seq[stream] - old.last)
        self._sequencers = {stream: Sequencer(seq[stream]) for stream in self._streams}
        if self._view is not None:
            self._view.last = seq["metric"]
        self._repairing.clear()
        self._phase = "joined"
        early, self._early = self._early, []
        for stream, first, lines in early:
            self._deliver(stream, first, lines)

    def _read_one(self) -> bool:
        frames = self._receive()
        if frames is None:
            return False
        self.stats.bytes += sum(map(len, frames))
        try:
            self._take_message(frames)
        except WireError as error:
            self._note_bad(error)
        return True

    def _take_message(self, frames: list[bytes]) -> None:
        if frames[0] == HEARTBEAT_TOPIC:
            if self._phase == "barrier":
                self._phase = "hello"
                self._ask_hello()
            if len(frames) > 1 and self._take_heartbeat(heartbeat := decode_heartbeat(frames[1])):
                for stream, sequencer in self._sequencers.items():
                    sequencer.note_latest(heartbeat.last.get(stream, 0))
            return
        if len(frames) != 3:
            raise WireError(f"a batch has 3 frames, this has {len(frames)}")
        if frames[0] == VIEW_TOPIC:
            self._take_view(frames)
            return
        header, lines = decode_batch(frames[1], frames[2])
        if not self._claim_boot(header.boot):
            return
        if self._phase == "joined":
            self._deliver(header.stream, header.first, lines)
        elif len(self._early) < MAX_EARLY_BATCHES:
            self._early.append((header.stream, header.first, lines))

    def _take_view(self, frames: list[bytes]) -> None:
        header, lines = decode_view(frames[1], frames[2])
        if header.boot != self.boot:
            self._lose_boot()
            return
        self.windows = header.windows
        if self._phase == "joined" and self._view is not None:
            self._ready.extend(self._view.push(lines))

    def _deliver(self, stream: str, first: int, lines: list[bytes]) -> None:
        sequencer = self._sequencers.get(stream)
        if sequencer is not None:
            self._ready.extend(sequencer.push(first, lines))

    def _repair(self) -> None:
        if self._phase != "joined":
            return
        for stream, sequencer in self._sequencers.items():
            missing = sequencer.missing
            if sequencer.behind > MAX_EVENTS_BEHIND:
                self._start_over(f"{sequencer.behind} events behind on {stream}")
                return
            if missing is not None and stream not in self._repairing:
                self.stats.gaps += 1
                self._ask_replay(stream, *missing)

    def _ask_replay(self, stream: str, first: int, last: int) -> None:
        self._repairing.add(stream)
        params = {"stream": stream, "first": first, "last": last}
        self._requests.submit(PendingRequest("replay", params, self._take_replay, None))

    def _take_replay(self, call: PendingRequest, reply: Reply | None, body: Body) -> None:
        assert reply is not None
        stream = call.params["stream"]
        if stream not in self._repairing:
            return
        if reply.result is None or not reply.result["n"]:
            self._start_over(f"{stream} {call.params['first']}..{call.params['last']} is no longer held")
            return
        lines = lines_of(body)
        self.stats.repaired += len(lines)
        self._deliver(stream, call.params["first"], lines)
        missing = self._sequencers[stream].missing
        if reply.result["more"] and missing is not None:
            self._ask_replay(stream, *missing)
        else:
            self._repairing.discard(stream)

    def _start_over(self, reason: str) -> None:
        self._reason = reason
        self._early.clear()
        self._repairing.clear()
        self._ask_snapshot()

    def _decode_into(self, items: list[Item], line: bytes) -> None:
        try:
            items.append(decode_line(line))
        except WireError as error:
            self._note_bad(error)
        else:
            self.stats.events += 1

    def _note_bad(self, error: WireError) -> None:
        self.stats.bad += 1
        self.stats.last_bad = str(error)

    def _update_state(self) -> None:
        state = self._link_state(is_joined=self._phase == "joined")
        if self._source.is_gone or state == "ended":
            self._recover_tail(self._target)
        self._enter(state)

    def _recover_tail(self, target: Target | None) -> None:
        """The daemon is gone: what it had not sent may be in its journal."""
        owed = {name: one for name, one in self._sequencers.items() if one.behind}
        if target is None or not owed or self._phase != "joined":
            return
        for stream, seq, line in newest_lines(target.journal) if target.journal else ():
            if stream in owed and owed[stream].last < seq <= owed[stream].known:
                self._deliver(stream, seq, [line])
                self.stats.repaired += 1
        self.stats.skipped += sum(one.behind for one in owed.values())
        self._sequencers = {}

    def _enter(self, state: LinkState) -> None:
        if state != self.state:
            self.state = state
            self._ready.append(LinkChanged(state))
