"""Answers of the query socket, all from what the I/O thread holds itself: the trainer is never asked."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from esper_overwatch.protocol.codec.json_lines import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.journal.command_log import CommandLog, CommandRecord
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.machine.stacks import read_stacks
from esper_overwatch.protocol.messages.commands import (
    HistoryParams,
    OpParams,
    Params,
    ReplayParams,
    SnapshotParams,
)
from esper_overwatch.protocol.messages.events import EVENTS
from esper_overwatch.protocol.messages.headers import TrainerBeat
from esper_overwatch.protocol.messages.schema import json_schema, schema_hash
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.version import PROTOCOL_VERSION, __version__

from .admission import MAX_REQUEST_BYTES
from .emitter import MAX_QUEUED, Emitter
from .history import Lines, newest_lines_before, thin_lines
from .lease import CommandLease
from .mailbox import MAX_MAILBOX_COMMANDS, Mailbox
from .publisher import MAX_RING_EVENTS, Publisher
from .rate_limiter import RateLimiter
from .reply_cache import REMEMBERED_SECONDS
from .request_handler import QueryResult
from .run_kind import RunKind

MAX_REPLAY_BYTES = 1024 * 1024
MAX_ENDED = 256
"""Ended commands that are remembered."""
_OF_COMMAND = (
    *("method", "params", "client", "uid", "pid", "key"),
    *("state", "done", "total", "ended", "result", "error"),
)


class ServerView(Protocol):
    """The part of `Server` that the answers are made from."""

    boot: str
    clients: RateLimiter
    commands: CommandLog
    emitter: Emitter
    kind: RunKind
    leases: CommandLease
    mailbox: Mailbox
    parameters: Callable[[], dict[str, Any]]
    metrics: dict[str, object] | None
    refusals: RateLimiter
    run: RunFolder
    started: int

    @property
    def counters(self) -> dict[str, int]: ...

    @property
    def endpoints(self) -> dict[str, dict[str, str] | None]: ...

    @property
    def subscribers(self) -> int: ...

    @property
    def trainer_beat(self) -> TrainerBeat: ...

    @property
    def wire_status(self) -> dict[str, object]: ...


class Queries:
    """One handler for each method of the query socket.

    Args:
        server: whose state is reported.
        publisher: snapshot and newest events.
        journal: older events.
        extra: what the trainer adds to `hello`.
    """

    def __init__(
        self, server: ServerView, publisher: Publisher, journal: Journal, *, extra: dict[str, Any]
    ) -> None:
        self._server = server
        self._publisher = publisher
        self._journal = journal
        self._extra = extra
        self._began = time.monotonic()
        self.handlers: dict[str, Callable[[Any], QueryResult]] = {
            "hello": lambda _: (self._hello(), None),
            "ping": lambda _: ({}, None),
            "status": lambda _: (self._status(), None),
            "snapshot": self._snapshot,
            "replay": self._replay,
            "history": self._history,
            "schema": lambda _: (json_schema(), None),
            "param.get": lambda _: ({"params": server.parameters()}, None),
            "op.get": self._command,
            "op.list": lambda _: ({"ops": list(map(_as_plain, server.commands.records()))}, None),
            "clients": lambda _: (
                {"clients": server.clients.list(), "subscribers": server.subscribers},
                None,
            ),
            "stacks": lambda _: ({"threads": read_stacks()}, None),
        }

    def answer(self, method: str, params: Params) -> QueryResult:
        """Answer a query whose parameters have been validated.

        Raises:
            RequestError: the answer is an error (a replay of what is no longer held).
        """
        return self.handlers[method](params)

    def _hello(self) -> dict[str, Any]:
        server = self._server
        return {
            "thresholds": {t.signal: dataclasses.asdict(t) for t in THRESHOLDS.values()},
            **self._extra,
            **server.kind.describe(),
            "kind": server.kind.name,
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "run": server.run.id,
            "name": server.run.name,
            "boot": server.boot,
            "pid": os.getpid(),
            "started": server.started,
            "state": server.trainer_beat.state,
            "endpoints": server.endpoints,
            "schema": schema_hash(),
            "streams": list(STREAMS),
            "events": {spec.type: spec.version for spec in EVENTS.values()},
            "methods": {
                m.name: {"socket": m.socket, "role": m.need, "states": list(m.states), "effect": m.effect}
                for m in list(server.kind.methods.values())
            },
            "limits": {
                "request_bytes": MAX_REQUEST_BYTES,
                "batch_events": MAX_BATCH_EVENTS,
                "batch_bytes": MAX_BATCH_BYTES,
                "replay_bytes": MAX_REPLAY_BYTES,
                "ring_events": MAX_RING_EVENTS,
                "queues": dict(MAX_QUEUED),
                "mailbox": MAX_MAILBOX_COMMANDS,
                "remembered_s": REMEMBERED_SECONDS,
            },
        }

    def _command(self, params: OpParams) -> QueryResult:
        found = self._server.commands.get(params.op)
        if found is None:
            raise RequestError("not_found", f"no command {params.op} of this boot; op.list has the newest")
        return _as_plain(found), None

    def _status(self) -> dict[str, Any]:
        server, journal, started = self._server, self._journal, self._publisher.started
        beat = server.trainer_beat
        return {
            "run": server.run.id,
            "name": server.run.name,
            "kind": server.kind.name,
            **server.kind.describe(),
            "boot": server.boot,
            "pid": os.getpid(),
            "state": beat.state,
            "round": beat.round,
            "epoch": beat.epoch,
            "beat_age_ms": beat.beat_age_ms,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "task": started and started.task,
            "envs": started and started.envs,
            "rounds": started and started.rounds,
            "device": started and started.device,
            "level": server.emitter.context.level,
            "clients": server.subscribers,
            "endpoints": server.endpoints,
            "listen": None,
            "metrics": server.metrics,
            "commands_waiting": server.mailbox.num_waiting,
            "lease": server.leases.holder,
            "seq": dict(self._publisher.last),
            "queued": server.emitter.waiting,
            "dropped": server.emitter.dropped,
            "unencodable": self._publisher.unencodable,
            "unaudited": server.refusals.refused,
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
            "wire": server.wire_status,
        }

    def _snapshot(self, params: SnapshotParams) -> QueryResult:
        count, lines = self._publisher.snapshot.lines(params.streams)
        seq = {stream: self._publisher.last[stream] for stream in params.streams}
        return {"boot": self._server.boot, "seq": seq, "n": count}, lines

    def _replay(self, params: ReplayParams) -> QueryResult:
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
        found = self._range(params.stream, params.first, last, limit=MAX_REPLAY_BYTES)
        numbered = zip(found, itertools.count(params.first), strict=False)
        found_lines = [line for (seq, line), wanted in numbered if seq == wanted]
        if not found_lines:
            oldest = self._publisher.oldest(params.stream, params.first)
            raise RequestError(
                "range_gone",
                f"{params.stream} {params.first}..{params.last} is no longer held; go on at {oldest}",
                {"oldest": oldest, "newest": newest},
            )
        end = params.first + len(found_lines) - 1
        return empty | {"last": end, "n": len(found_lines), "more": end < last}, b"\n".join(found_lines)

    def _history(self, params: HistoryParams) -> QueryResult:
        newest = self._publisher.last[params.stream]
        last = min(params.before - 1, newest) if params.before else newest
        found = newest_lines_before(self._range, params.stream, last)
        kept = thin_lines(found, types=params.types, interval_seconds=params.interval, limit=params.bytes)
        first = kept.first if found else last + 1
        more = bool(found) and first > found[0][0]
        more = more or (first > 1 and self._range(params.stream, first - 1, first - 1, limit=1) != [])
        result = {"stream": params.stream, "first": first, "n": len(kept.lines), "more": more}
        return result, b"\n".join(kept.lines)

    def _range(self, stream: Stream, first: int, last: int, *, limit: int) -> Lines:
        """See `Publisher.range`; where the journal cannot be read, the answer says so."""
        try:
            return self._publisher.range(stream, first, last, limit=limit)
        except OSError as error:
            raise RequestError("internal", f"the journal cannot be read: {error.strerror}") from None


def _as_plain(record: CommandRecord) -> dict[str, Any]:
    return {"op": record.id, "accepted": record.ts, **{name: getattr(record, name) for name in _OF_COMMAND}}
