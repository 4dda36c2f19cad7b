"""Steer a run from Python:

from esper_overwatch import connect
with connect("digits-7f3a") as run:
    run.checkpoint(tag="before", wait=True)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import zmq

from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, terminate_context
from esper_overwatch.protocol.errors import KeyRefused, NoReply, RequestError
from esper_overwatch.protocol.journal.reader import newest_lines
from esper_overwatch.protocol.messages.commands import Reply
from esper_overwatch.protocol.messages.events import CommandDone, CommandFailed
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Level, Severity, Stream
from esper_overwatch.protocol.storage.folders import StrPath

from .endpoint import STARTING_SECONDS, Target, TargetSource
from .items import Reset
from .requests import Body, PendingRequest, PendingRequests, error_of, lines_of
from .sources import LocalRuns, make_target_source, wait_for_target
from .subscriber import Subscriber

logger = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
"""How long a command that is waited for is held back for its stream of events to be there."""


class Client:
    """One daemon, asked and commanded; blocking, not thread-safe. See `connect`.

    Every command gives what the daemon answered: its id and the state `accepted`. With `wait=True` it waits
    for the effect and gives the result that `command.done` carries.
    """

    def __init__(self, target: Target, source: TargetSource, *, client: str, lease: str = "") -> None:
        self.run = target
        self._source = source
        self._client = client
        self._context: ZmqContext = zmq.Context()
        self._requests = PendingRequests(client, {"": lease})
        self._requests.attach(self._context, target)
        asked = time.time_ns() // 1000
        try:
            reply, _ = self._exchange("hello", {}, deadline_s=STARTING_SECONDS)
        except BaseException:
            self.close()
            raise
        hello = reply.result or {}
        self.boot = reply.meta.boot
        self.run = replace(
            target, name=hello.get("name", target.name), id=hello.get("run"), pid=hello.get("pid")
        )
        self._requests.identify(self.boot, reply.meta.ts - (asked + time.time_ns() // 1000) // 2)

    def hello(self) -> dict[str, Any]:
        """The daemon's identity, state, thresholds, methods, limits."""
        return self.call("hello")

    def status(self) -> dict[str, Any]:
        """State, clock, beat, queues, journal, clients."""
        return self.call("status")

    def ping(self) -> float:
        """Seconds to the daemon and back."""
        begin = time.perf_counter()
        self.call("ping")
        return time.perf_counter() - begin

    def schema(self) -> dict[str, Any]:
        """JSON Schema of all events and requests."""
        return self.call("schema")

    def params(self) -> dict[str, Any]:
        """Settings that `set_param` may change: by key the value, the bounds, when a change takes effect."""
        answer: dict[str, Any] = self.call("param.get")["params"]
        return answer

    def op(self, id_: str) -> dict[str, Any]:
        """State, progress and result of a command."""
        return self.call("op.get", {"op": id_})

    def ops(self) -> list[dict[str, Any]]:
        """The open commands and the newest ended ones."""
        answer: list[dict[str, Any]] = self.call("op.list")["ops"]
        return answer

    def clients(self) -> list[dict[str, Any]]:
        """Clients that have asked lately."""
        answer: list[dict[str, Any]] = self.call("clients")["clients"]
        return answer

    def stacks(self) -> list[dict[str, Any]]:
        """What every thread of the run's process is doing: name, CPU time in microseconds, frames."""
        answer: list[dict[str, Any]] = self.call("stacks")["threads"]
        return answer

    def snapshot(self, streams: Sequence[Stream] = STREAMS) -> list[Event]:
        """The newest events of each type and subject."""
        _, body = self._exchange("snapshot", {"streams": list(streams)})
        return [decode_line(line) for line in lines_of(body)]

    def replay(self, stream: Stream, first: int = 1, last: int | None = None) -> Iterator[Event]:
        """Events `first`..`last` of a stream, asked for 1 MiB at a time; None = up to the newest of now.

        Raises:
            RequestError: `range_gone`, the first is no longer held; `data["oldest"]` is the oldest that is.
        """
        if last is None:
            last = self.status()["seq"][stream]
        while first <= last:
            _, body = self._exchange("replay", {"stream": stream, "first": first, "last": last})
            lines = lines_of(body)
            yield from map(decode_line, lines)
            first += len(lines)
            if not lines:
                return

    def events(self, streams: Sequence[Stream] = STREAMS, timeout: float | None = None) -> Iterator[Event]:
        """The snapshot's events, then new ones as they come; see `Subscriber.events`."""
        with self._subscriber(streams) as subscriber:
            yield from subscriber.events(timeout)

    def pause(self, *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """Hold training at the end of the epoch."""
        return self.command("pause", {}, wait, reason)

    def resume(self, *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """Go on training."""
        return self.command("resume", {}, wait, reason)

    def checkpoint(self, tag: str = "", *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """Save a checkpoint at the end of the epoch."""
        return self.command("checkpoint", {"tag": tag} if tag else {}, wait, reason)

    def stop(
        self, mode: str = "after_epoch", *, checkpoint: bool = True, wait: bool = False, reason: str = ""
    ) -> dict[str, Any]:
        """End the run at the end of the epoch, or of the round with `mode="after_round"`."""
        params: dict[str, Any] = {} if mode == "after_epoch" else {"mode": mode}
        if not checkpoint:
            params["checkpoint"] = False
        return self.command("stop", params, wait, reason)

    def escalate(
        self,
        level: Level = "DEBUG",
        epochs: int = 5,
        env: int | None = None,
        *,
        wait: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Collect at `level` for exactly `epochs` epochs, then fall back."""
        return self.command(
            "telemetry.escalate", {"level": level, "epochs": epochs, "env": env}, wait, reason
        )

    def profile(
        self, epochs: int = 2, *, with_update: bool = False, wait: bool = False, reason: str = ""
    ) -> dict[str, Any]:
        """Record the profiler's trace over the next epochs, or over a round's last ones and its update."""
        params = {"epochs": epochs, "with_update": with_update}
        return self.command("profiler.start", params, wait, reason)

    def stop_profile(self, *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """End the recording early; the trace is written all the same."""
        return self.command("profiler.stop", {}, wait, reason)

    def set_param(self, key: str, value: float, *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """Change a parameter of the training; `params` lists them."""
        return self.command("param.set", {"key": key, "value": value}, wait, reason)

    def germinate(
        self,
        env: int,
        slot: str,
        blueprint: str,
        *,
        style: str = "ADD",
        tempo: int = 5,
        wait: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Plant a seed in a dormant slot of one env."""
        params = {"env": env, "slot": slot, "blueprint": blueprint, "style": style, "tempo": tempo}
        return self.command("seed.germinate", params, wait, reason)

    def prune(
        self, env: int, slot: str, *, epochs: int = 0, wait: bool = False, reason: str = ""
    ) -> dict[str, Any]:
        """Remove a seed of one env, a blended one over some epochs."""
        return self.command("seed.prune", {"env": env, "slot": slot, "epochs": epochs}, wait, reason)

    def cancel(self, op: str, *, wait: bool = False, reason: str = "") -> dict[str, Any]:
        """Cancel a command that has not ended: it fails with `cancelled`."""
        return self.command("op.cancel", {"op": op}, wait, reason)

    def acknowledge(
        self, incident: str, *, severity: Severity = "critical", reason: str = ""
    ) -> dict[str, Any]:
        """Say of an open incident, to all viewers, that it has been seen; see `AcknowledgeParams`."""
        params = {"incident": incident, "severity": severity}
        return self.command("anomaly.acknowledge", params, False, reason)

    def mute(self, incident: str, *, seconds: float = 600.0, reason: str = "") -> dict[str, Any]:
        """Have an open incident ask for nobody's attention for a while; 0 ends that."""
        return self.command("anomaly.mute", {"incident": incident, "seconds": seconds}, False, reason)

    def mark(self, text: str, *, reason: str = "") -> dict[str, Any]:
        """Note something on the run's timeline."""
        return self.command("mark", {"text": text}, False, reason)

    def rotate(self, *, reason: str = "") -> dict[str, Any]:
        """Close the journal's segment now."""
        return self.command("log.rotate", {}, False, reason)

    def acquire_lease(self, ttl: float = 60.0, note: str = "") -> dict[str, Any]:
        """Have only this client's commands accepted for `ttl` seconds; another call lengthens it."""
        return self.command("lease.acquire", {"ttl": ttl, "note": note}, False, note)

    def release_lease(self, *, force: bool = False) -> dict[str, Any]:
        """Let the others command again; with `force` end a lease that another holds."""
        return self.command("lease.release", {"force": force}, False, "")

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        deadline_s: float = 10.0,
        reason: str = "",
    ) -> dict[str, Any]:
        """Ask any method and give its result; repeated with the same id while no answer comes.

        Raises:
            RequestError: the daemon refused; says why.
            NoReply: it did not answer within `deadline_s`, and will not execute the request later.
        """
        reply, _ = self._exchange(method, params or {}, deadline_s=deadline_s, reason=reason)
        return reply.result or {}

    def wait_for(self, id_: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the effect of an accepted command and give its result.

        Raises:
            RequestError: it could not be executed.
            NoReply: the daemon ended or restarted before, or `timeout` seconds have passed.
        """
        with self._subscriber(("life",)) as subscriber:
            return self._wait_for_effect(subscriber, id_, timeout)

    def _wait_for_effect(
        self, subscriber: Subscriber, id_: str, timeout: float | None = None
    ) -> dict[str, Any]:
        """Do what `wait_for` promises, with a subscriber to `life`."""
        end = None if timeout is None else time.monotonic() + timeout
        name = self.run.name
        while True:
            for item in subscriber.drain(0.05):
                if isinstance(item, Reset) and subscriber.boot != self.boot:
                    raise NoReply(f"run {name} restarted before {id_} took effect")
                if isinstance(item, Event) and (result := _effect_of(item, id_)) is not None:
                    return result
            found_none = subscriber.state == "searching" and subscriber.problem is not None
            if subscriber.state in ("ended", "lost") or found_none:
                for event in self._last_events():
                    if (result := _effect_of(event, id_)) is not None:
                        return result
                raise NoReply(f"run {name} ended before {id_} took effect")
            if end is not None and time.monotonic() > end:
                raise NoReply(f"{id_} has not taken effect after {timeout:g} s; it may still")
            subscriber.wait(0.1)

    def _last_events(self) -> Iterator[Event]:
        """Read the last events of a daemon that has ended, where its journal is on this machine."""
        if self.run.journal is not None:
            for stream, _, line in newest_lines(self.run.journal):
                if stream == "life":
                    yield decode_line(line)

    def command(
        self, method: str, params: dict[str, Any] | None = None, wait: bool = False, reason: str = ""
    ) -> dict[str, Any]:
        """Send any command of `METHODS`, or one that a published run's loop has registered.

        Args:
            wait: for its effect, and give its result; else give the answer that it is accepted.
            reason: for the audit events.

        Raises:
            RequestError: it was refused or could not be executed.
            NoReply: the daemon did not answer, or ended before the effect.
        """
        params = params or {}
        # Subscribe before the command is sent: a daemon that ends reports the effect of a command only once.
        if not wait:
            return self._send_command(method, params, reason)
        with self._subscriber(("life",)) as subscriber:
            _wait_until_joined(subscriber)
            answer = self._send_command(method, params, reason)
            if answer.get("state") != "accepted":
                return answer
            if "note" in answer:
                logger.warning("%s is accepted, but %s", method, answer["note"])
            return self._wait_for_effect(subscriber, answer["id"])

    def _send_command(self, method: str, params: dict[str, Any], reason: str) -> dict[str, Any]:
        reply, _ = self._exchange(method, params, reason=reason)
        assert reply.id is not None
        return {"id": reply.id, **(reply.result or {})}

    def _exchange(
        self, method: str, params: dict[str, Any], *, deadline_s: float = 10.0, reason: str = ""
    ) -> tuple[Reply, Body]:
        answers: list[tuple[Reply | None, Body]] = []
        call = PendingRequest(
            method,
            params,
            lambda _, reply, body: answers.append((reply, body)),
            time.monotonic() + deadline_s,
            reason,
        )
        self._requests.submit(call)
        while not answers:
            zmq.select(self._requests.sockets, [], [], 0.02 if call.sent else 0.001)
            self._source.step()
            if refused := self._requests.problem():
                raise KeyRefused(refused)
            self._requests.step()
        reply, body = answers[0]
        if reply is None:
            pid = f" (pid {self.run.pid})" if self.run.pid else ""
            text = f"run {self.run.name}{pid} did not answer {method} within {deadline_s:g} s"
            if self.run.journal is not None:  # on this machine
                from esper_overwatch.protocol.machine.processes import describe_stop  # loads psutil

                text = ": ".join(filter(None, (text, describe_stop(self.run.pid))))
            raise NoReply(text)
        if error := error_of(reply):
            is_of_deadline = error.kind == "deadline" or error.data.get("path") == "$.meta.deadline"
            if is_of_deadline and self._requests.check_clock(reply.meta.ts):
                return self._exchange(method, params, deadline_s=deadline_s, reason=reason)
            raise error
        return reply, body

    def _subscriber(self, streams: Sequence[Stream]) -> Subscriber:
        return Subscriber(streams=streams, client=self._client, source=self._source)

    def close(self) -> None:
        """Close the sockets."""
        self._requests.detach()
        terminate_context(self._context)
        self._source.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_until_joined(subscriber: Subscriber) -> None:
    """Read until the stream is joined, at most `JOIN_SECONDS`; after that the command shows what is wrong."""
    end = time.monotonic() + JOIN_SECONDS
    while subscriber.state in ("searching", "connecting") and time.monotonic() < end:
        subscriber.drain(0.05)
        subscriber.wait(0.05)


def _effect_of(event: Event, id_: str) -> dict[str, Any] | None:
    """The result of the command `id_` where the event carries it.

    Raises:
        RequestError: the event says that it failed.
    """
    if getattr(event.data, "id", None) != id_:
        return None
    if isinstance(event.data, CommandFailed):
        raise RequestError(event.data.kind, event.data.message, {"id": id_})
    return {"id": id_, **event.data.result} if isinstance(event.data, CommandDone) else None


def connect(
    name: str | None = None,
    *,
    key: str | None = None,
    client: str = "python",
    home: StrPath | None = None,
    lease: str = "",
    remote_daemon: str | None = None,
) -> Client:
    """Connect to a live run.

    Args:
        name: its name, id or the beginning of one; None for the newest. Of another machine:
            `ssh://user@host/name`, or `tcp://host:port` of a daemon that listens there.
        key: for tcp, which of the keys; None = the only one there is.
        client: how to call yourself in the run's audit events.
        home: instead of `$ESPER_HOME`.
        lease: what `lease.acquire` gave to whom you act for; else `$ESPER_LEASE`.
        remote_daemon: for ssh, the command of esper-daemon there; else `$ESPER_REMOTE_DAEMON`.

    Raises:
        RunNotFound: no such live run, or more than one.
        NoReply: it does not answer.
        RequestError: it speaks another protocol version.
        TunnelError: the other machine cannot be reached.
        KeyRefused: it does not let this key in.
    """
    lease = lease or os.environ.get("ESPER_LEASE", "")
    if key is not None:
        name = with_key(name or "", key)
    source = make_target_source(name, home, remote_daemon=remote_daemon)
    try:
        target = wait_for_target(source)
        if not source.is_remote:
            source = LocalRuns(target.name, home)
        return Client(target, source, client=client, lease=lease)
    except BaseException:
        source.close()
        raise
