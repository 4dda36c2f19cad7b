"""Answers of the query socket, all from what the I/O thread holds itself: the trainer is never asked."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from .commands import METHODS, OpParams, Params, ReplayParams, SnapshotParams
from .control import MAILBOX, REMEMBERED_S, REQUEST_BYTES, Answer
from .emitter import BOUNDS
from .encoding import BATCH_BYTES, BATCH_EVENTS
from .errors import RequestError
from .events import EVENTS, STREAMS
from .journal import Journal
from .publisher import RING_EVENTS, Publisher
from .schema import json_schema, schema_hash
from .thresholds import THRESHOLDS
from .version import PROTOCOL_VERSION, __version__

if TYPE_CHECKING:
    from .server import Server

REPLAY_BYTES = 1024 * 1024


class Queries:
    """One method per query.

    Args:
        server: whose state is told.
        publisher: snapshot and newest events.
        journal: older events.
        extra: what the trainer adds to `hello`.
    """

    def __init__(
        self, server: Server, publisher: Publisher, journal: Journal, *, extra: dict[str, Any]
    ) -> None:
        self._server = server
        self._publisher = publisher
        self._journal = journal
        self._extra = extra

    def answer(self, method: str, params: Params) -> Answer:
        """Answer a query whose parameters have been validated.

        Raises:
            RequestError: the answer is an error (a replay of what is no longer held).
        """
        if isinstance(params, SnapshotParams):
            return self._snapshot(params)
        if isinstance(params, ReplayParams):
            return self._replay(params)
        if isinstance(params, OpParams):
            return self._operation(params.op), None
        if method == "hello":
            return self._hello(), None
        if method == "status":
            return self._status(), None
        if method == "schema":
            return json_schema(), None
        if method == "op.list":
            return {"ops": self._server.operations.list()}, None
        if method == "clients":
            return {"clients": self._server.clients.list(), "subscribers": self._server.subscribers}, None
        if method == "param.get":
            return {"params": self._server.parameters()}, None
        assert method == "ping", method
        return {}, None

    def _hello(self) -> dict[str, Any]:
        server = self._server
        return {
            **self._extra,
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "run": server.run.id,
            "name": server.run.name,
            "boot": server.boot,
            "pid": os.getpid(),
            "started": server.started,
            "state": server.state,
            "schema": schema_hash(),
            "streams": list(STREAMS),
            "events": {spec.type: spec.version for spec in EVENTS.values()},
            "methods": {
                m.name: {"socket": m.socket, "role": m.need, "states": list(m.states), "effect": m.effect}
                for m in METHODS.values()
            },
            "thresholds": {t.signal: dataclasses.asdict(t) for t in THRESHOLDS.values()},
            "limits": {
                "request_bytes": REQUEST_BYTES,
                "batch_events": BATCH_EVENTS,
                "batch_bytes": BATCH_BYTES,
                "replay_bytes": REPLAY_BYTES,
                "ring_events": RING_EVENTS,
                "queues": dict(BOUNDS),
                "mailbox": MAILBOX,
                "remembered_s": REMEMBERED_S,
            },
        }

    def _operation(self, id_: str) -> dict[str, Any]:
        found = self._server.operations.get(id_)
        if found is None:
            raise RequestError("not_found", f"no command {id_} of this boot; op.list tells the newest")
        return found

    def _status(self) -> dict[str, Any]:
        server, journal, started = self._server, self._journal, self._publisher.started
        beat = server.trainer_beat
        return {
            "run": server.run.id,
            "name": server.run.name,
            "boot": server.boot,
            "pid": os.getpid(),
            "state": beat.state,
            "round": beat.round,
            "epoch": beat.epoch,
            "beat_age_ms": beat.beat_age_ms,
            "uptime_s": round((time.time_ns() // 1000 - server.started) / 1e6, 3),
            "task": started and started.task,
            "envs": started and started.envs,
            "rounds": started and started.rounds,
            "device": started and started.device,
            "level": server.emitter.context.level,
            "clients": server.subscribers,
            "listen": server.listening,
            "commands_waiting": len(server.mailbox),
            "lease": server.lease,
            "seq": dict(self._publisher.last),
            "queued": server.emitter.waiting,
            "dropped": server.emitter.dropped,
            "unencodable": self._publisher.unencodable,
            "journal": {
                "path": str(journal.path),
                "bytes": journal.bytes,
                "waiting_bytes": journal.waiting,
                "errors": journal.errors,
                "error": journal.error,
                "lost": journal.lost,
                "cut_bytes": journal.cut,
                "segments": journal.segments,
            },
            "control": server.counters,
        }

    def _snapshot(self, params: SnapshotParams) -> Answer:
        count, lines = self._publisher.snapshot.lines(params.streams)
        seq = {stream: self._publisher.last[stream] for stream in params.streams}
        return {"boot": self._server.boot, "seq": seq, "n": count}, lines

    def _replay(self, params: ReplayParams) -> Answer:
        newest = self._publisher.last[params.stream]
        last = min(params.last, newest)
        empty = {
            "stream": params.stream,
            "first": params.first,
            "last": params.first - 1,
            "n": 0,
            "more": False,
        }
        if last < params.first:
            return empty, b""
        try:
            found = self._publisher.range(params.stream, params.first, last, limit=REPLAY_BYTES)
        except OSError as error:
            raise RequestError("internal", f"the journal cannot be read: {error.strerror}") from None
        numbered = zip(found, itertools.count(params.first), strict=False)
        whole = [line for (seq, line), wanted in numbered if seq == wanted]
        if not whole:
            raise RequestError(
                "range_gone",
                f"{params.stream} {params.first}..{params.last} is no longer held",
                {"oldest": self._publisher.oldest(params.stream, params.first), "newest": newest},
            )
        end = params.first + len(whole) - 1
        return {
            **empty, "last": end, "n": len(whole), "more": end < last,
        }, b"\n".join(whole)  # fmt: skip
