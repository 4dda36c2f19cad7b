"""The reader's side of the wire: a run's events in order and without a hole, over restarts of the daemon.

Joining: subscribe → the welcome or a heartbeat shows that the subscriptions are in force → hello → snapshot →
the queued batches from there on. Holes are found by numbers (a lost tail by the heartbeat) and filled by
`replay`. One class for scripts (`events`) and for a screen's timer (`drain`); it never blocks in `drain`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import zmq

from .calls import Body, Call, Calls, lines_of, outcome
from .commands import METHODS
from .commands import Reply as WireReply
from .errors import EsperError
from .events import STREAMS, Stream
from .items import Item, LinkChanged, LinkState, Reply, Reset, Stats
from .journal import newest_lines
from .sequence import Newest, Sequencer
from .sockets import end
from .target import Link, Source, Target, source_of
from .thresholds import THRESHOLDS
from .version import PROTOCOL_VERSION
from .wire import (
    HEARTBEAT_TOPIC,
    TOPICS,
    VIEW_TOPIC,
    Event,
    Heartbeat,
    Window,
    WireError,
    decode_batch,
    decode_heartbeat,
    decode_line,
    decode_view,
)

__all__ = ["Event", "Item", "LinkChanged", "LinkState", "Reply", "Reset", "Stats", "Subscriber"]

_BY_SEVERITY: dict[str | None, LinkState] = {None: "live", "warning": "slow", "critical": "stale"}
LOST_S = 15.0
LOOK_S = 0.5
KNOCK_S = 5.0
TOO_FAR_BEHIND = 50_000
EARLY_BATCHES = 4_096
READY_LINES = 20_000


class Subscriber:
    """Follows one run. Made before any run exists, it waits for one. Not thread-safe.

    Args:
        name: a run's name, id or the beginning of one; None follows the newest live run, and after its end
            the next one. Of another machine: `ssh://user@host/name`.
        streams: which to read.
        client: how it calls itself in the audit events.
        home: instead of `$ESPER_HOME`.
        thin: read `view` in place of `metric` and `trace`: the newest metrics five times a second, with holes
            that nobody fills. For links that are too thin for all of them.
        source: finds the run, instead of `name` and `home`; it stays open at `close`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        streams: Sequence[Stream] = STREAMS,
        client: str = "python",
        home: Path | None = None,
        thin: bool = False,
        source: Source | None = None,
    ) -> None:
        self._asked = tuple(streams)
        self._streams = tuple(s for s in streams if not (thin and s in ("metric", "trace")))
        """Those that are read whole; a snapshot has all that were asked for."""
        self._view = Newest() if thin and "metric" in streams else None
        self._source = source or source_of(name, home)
        self._owns_source = source is None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._calls = Calls(client)
        self._ev: Link | None = None
        self._target: Target | None = None
        self._boot: str | None = None
        self._phase: Literal["barrier", "hello", "snapshot", "joined"] = "barrier"
        self._sequencers: dict[str, Sequencer] = {}
        self._early: list[tuple[str, int, list[bytes]]] = []
        self._repairing: set[str] = set()
        self._ready: deque[bytes | Item] = deque()
        self._reason = "joined"
        self._again = self._lost_boot = self._unfound = False
        self._heard = 0.0
        self._look_at = 0.0
        self.state: LinkState = "searching"
        self.problem: str | None = None
        """Why there is no connection, in words; None where there is one."""
        self.hello: dict[str, Any] | None = None
        """What the daemon said of itself."""
        self.heartbeat: Heartbeat | None = None
        """The newest one."""
        self.windows: dict[str, Window] = {}
        """Where it is thin: what the newest view tells of the events between, by type."""
        self.stats = Stats()

    # --- reading -----------------------------------------------------------------------------------

    def drain(self, budget_s: float = 0.01) -> list[Item]:
        """Everything that is there by now, in order; never blocks, and stops after about `budget_s`."""
        end = time.monotonic() + budget_s
        self._source.step()
        self._look()
        self._watch_handshakes()
        self._calls.step()
        while len(self._ready) < READY_LINES and self._read_one():
            if time.monotonic() > end:
                break
        self._repair()
        self._calls.step()
        self._judge()
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
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.poll(int(self.patience(timeout) * 1000))

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Those that are open now, for a poller or an event loop; only `drain` reads from them."""
        return [*self._calls.sockets, *([self._ev.socket] if self._ev else [])]

    def patience(self, timeout: float) -> float:
        """How long `drain` may be left alone where nothing can be read: less where a request waits."""
        return min(timeout, 0.01) if any(call.sent is None for call in self._calls.pending) else timeout

    @property
    def age(self) -> float | None:
        """Seconds since the last heartbeat, None before the first."""
        return time.monotonic() - self._heard if self.heartbeat else None

    @property
    def run(self) -> Target | None:
        """The run that is followed: as it was found, and since `hello` by its own name."""
        if self._target is None or self.hello is None:
            return self._target
        hello = self.hello
        return replace(self._target, name=hello["name"], id=hello["run"], pid=hello["pid"])

    @property
    def boot(self) -> str | None:
        """The boot of the daemon that is followed."""
        return self._boot

    # --- asking ------------------------------------------------------------------------------------

    def request(
        self, method: str, params: dict[str, Any] | None = None, deadline_s: float = 10.0, reason: str = ""
    ) -> str:
        """Ask something; the answer comes as a `Reply` from `drain`. Never blocks.

        Args:
            method: one of `commands.METHODS`.
            params: its parameters.
            deadline_s: after so long it is neither carried out nor waited for.
            reason: for the audit event.

        Returns:
            The request's id, which its effect event carries too.

        Raises:
            ValueError: no such method.
        """
        if method not in METHODS:
            raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
        deadline = time.monotonic() + deadline_s
        return self._calls.ask(Call(method, params or {}, self._answered, deadline, reason))

    @property
    def pending(self) -> list[Call]:
        """Own requests without an answer, oldest first."""
        return [call for call in self._calls.pending if call.deadline is not None]

    def _answered(self, call: Call, reply: WireReply | None, _: Body) -> None:
        self._ready.append(outcome(call, reply))

    # --- finding the daemon ------------------------------------------------------------------------

    def _look(self) -> None:
        """Find a daemon where there is none, or the next boot where this one is silent or gone."""
        now = time.monotonic()
        silent = self.age is None or self.age > THRESHOLDS["link_age"].warning
        if not silent and self._unfound:
            self.problem, self._unfound = None, False
        if now < self._look_at or not (silent or self.state == "ended"):
            return
        self._look_at = now + LOOK_S
        try:
            target = self._source.find()
        except EsperError as error:
            self.problem, self._unfound = str(error), True
            return
        if self._unfound:
            self.problem, self._unfound = None, False
        if self._lost_boot or target != self._target:
            self._open(target)

    def _open(self, target: Target) -> None:
        self._again = self._boot is not None
        self._close_link()
        self._target, self._boot, self._lost_boot = target, target.boot, False
        self.problem = self.heartbeat = self.hello = None
        self._sequencers, self._phase = {}, "barrier"
        topics = [TOPICS[stream] for stream in self._streams]
        if self._view is not None:
            topics.append(VIEW_TOPIC)
        self._ev = target.open(self._context, zmq.SUB, "ev", (*topics, HEARTBEAT_TOPIC))
        self._calls.attach(self._context, target)
        self._enter("connecting")

    def _watch_handshakes(self) -> None:
        """A key that is refused: say so, and knock again later."""
        found = self._calls.problem() or (self._ev.problem() if self._ev else None)
        if found is None:
            return
        self._close_link()
        self.problem, self.heartbeat, self._lost_boot = found, None, True
        self._look_at = time.monotonic() + KNOCK_S

    def _is_mine(self, boot: str) -> bool:
        """Whether this boot is the one followed; without one, it is from now on."""
        if self._boot is None:
            self._boot = boot
        return boot == self._boot

    def _close_link(self) -> None:
        if self._ev is not None:
            self._ev.close()
            self._ev = None
        self._calls.detach()
        self._early.clear()
        self._repairing.clear()

    def close(self) -> None:
        """Close the sockets."""
        self._close_link()
        end(self._context)
        if self._owns_source:
            self._source.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- joining -----------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        self._phase = "hello"
        self._calls.ask(Call("hello", {}, self._hello_came, None))

    def _hello_came(self, call: Call, reply: WireReply | None, _: Body) -> None:
        assert reply is not None
        assert call.sent is not None
        if reply.result is None or reply.result.get("protocol") != PROTOCOL_VERSION:
            theirs = (
                reply.error.message if reply.error else f"protocol {(reply.result or {}).get('protocol')}"
            )
            self.problem = f"the daemon does not speak protocol {PROTOCOL_VERSION}: {theirs}"
            self._close_link()
            return
        if not self._is_mine(reply.meta.boot):
            self._lose_boot()
            return
        self.hello = reply.result
        half_way = time.time_ns() // 1000 - int((time.monotonic() - call.sent) / 2 * 1e6)
        self._calls.identify(reply.meta.boot, reply.meta.ts - half_way)
        assert self.run is not None
        self._reason = f"run {self.run.name}, {'new boot' if self._again else 'boot'} {self._boot}"
        self._ask_snapshot()

    def _ask_snapshot(self) -> None:
        self._phase = "snapshot"
        params = {"streams": list(self._asked)}
        self._calls.ask(Call("snapshot", params, self._snapshot_came, None))

    def _snapshot_came(self, _: Call, reply: WireReply | None, body: Body) -> None:
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

    def _lose_boot(self) -> None:
        """Another boot answers at this address: start over as soon as its connection file is found."""
        self._close_link()
        self._heard, self.heartbeat = 0.0, None
        self._lost_boot = True
        self._look_at = 0.0

    # --- the stream --------------------------------------------------------------------------------

    def _read_one(self) -> bool:
        if self._ev is None:
            return False
        try:
            frames = self._ev.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.stats.bytes += sum(map(len, frames))
        try:
            self._take(frames)
        except WireError as error:
            self._note_bad(error)
        return True

    def _take(self, frames: list[bytes]) -> None:
        if frames[0] == HEARTBEAT_TOPIC:
            if self._phase == "barrier":
                self._say_hello()
            if len(frames) > 1:
                self._take_heartbeat(decode_heartbeat(frames[1]))
            return
        if len(frames) != 3:
            raise WireError(f"a batch has 3 frames, this has {len(frames)}")
        if frames[0] == VIEW_TOPIC:
            self._take_view(frames)
            return
        header, lines = decode_batch(frames[1], frames[2])
        if not self._is_mine(header.boot):
            self._lose_boot()
        elif self._phase == "joined":
            self._deliver(header.stream, header.first, lines)
        elif len(self._early) < EARLY_BATCHES:
            self._early.append((header.stream, header.first, lines))

    def _take_view(self, frames: list[bytes]) -> None:
        header, lines = decode_view(frames[1], frames[2])
        if header.boot != self._boot:
            self._lose_boot()
            return
        self.windows = header.windows
        if self._phase == "joined" and self._view is not None:
            self._ready.extend(self._view.offer(lines))

    def _take_heartbeat(self, heartbeat: Heartbeat) -> None:
        if not self._is_mine(heartbeat.boot):
            self._lose_boot()
            return
        self.heartbeat = heartbeat
        self._heard = time.monotonic()
        for stream, sequencer in self._sequencers.items():
            sequencer.tell(heartbeat.last.get(stream, 0))

    def _deliver(self, stream: str, first: int, lines: list[bytes]) -> None:
        sequencer = self._sequencers.get(stream)
        if sequencer is not None:
            self._ready.extend(sequencer.offer(first, lines))

    def _repair(self) -> None:
        if self._phase != "joined":
            return
        for stream, sequencer in self._sequencers.items():
            missing = sequencer.missing
            if sequencer.behind > TOO_FAR_BEHIND:
                self._start_over(f"{sequencer.behind} events behind on {stream}")
                return
            if missing is not None and stream not in self._repairing:
                self.stats.gaps += 1
                self._ask_replay(stream, *missing)

    def _ask_replay(self, stream: str, first: int, last: int) -> None:
        self._repairing.add(stream)
        params = {"stream": stream, "first": first, "last": last}
        self._calls.ask(Call("replay", params, self._replay_came, None))

    def _replay_came(self, call: Call, reply: WireReply | None, body: Body) -> None:
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

    # --- the link ----------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Which state the link is in, from the heartbeat and the run's lock."""
        if self._target is None:
            state: LinkState = "searching"
        elif self.heartbeat is not None and self.heartbeat.bye is not None:
            state = "ended"
        elif self._source.gone or self.problem is not None:
            state = "lost"
        elif self.age is None or self._phase != "joined":
            state = "connecting"
        elif self.age >= LOST_S:
            state = "lost"
        else:
            state = _BY_SEVERITY[THRESHOLDS["link_age"].severity(self.age)]
        if self._source.gone or state == "ended":
            self._finish(self._target)
        self._enter(state)

    def _finish(self, target: Target | None) -> None:
        """The daemon is gone: what it still owed may be in its journal."""
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
