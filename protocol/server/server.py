"""The daemon's side of the wire: one thread that owns all sockets and the journal.

The trainer's threads leave events in `emitter` and take commands from `mailbox`; they never touch a socket.
The thread wakes 20 times a second for telemetry and at once for a request.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import zmq

from esper_overwatch.protocol.codec.frames import (
    HEARTBEAT_TOPIC,
    VIEW_TOPIC,
    Frames,
    encode_heartbeat,
    encode_view,
)
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.journal.command_log import CommandLog
from esper_overwatch.protocol.journal.writer import DEFAULT_LIMITS, Journal, JournalLimits
from esper_overwatch.protocol.messages.commands import Params, Socket
from esper_overwatch.protocol.messages.events import (
    CommandDone,
    CommandFailed,
    CommandProgress,
    CommandRefused,
    RunStateChanged,
)
from esper_overwatch.protocol.messages.headers import Heartbeat, TrainerBeat
from esper_overwatch.protocol.messages.roles import Claim, Peer
from esper_overwatch.protocol.messages.vocabulary import RunState
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from . import sockets
from .emitter import Emitter
from .faults import Faults
from .immediate_commands import ImmediateCommands
from .local_sockets import LocalSockets
from .mailbox import Command, Mailbox
from .publisher import MAX_TICK_EVENTS, Observer, Publisher
from .queries import MAX_ENDED, Queries
from .reply_sender import ReplySender
from .request_handler import RequestHandler
from .run_kind import TRAINING, RunKind
from .silence import SilenceWatch
from .sockets import SubscriberCounts

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0
VIEW_SECONDS = 0.2
CLOSE_SECONDS = 10.0
SILENT_SECONDS = 60.0
REQUESTS_PER_TURN = 64
BYTES_PER_TURN = 4 * 1024 * 1024


class Server:
    """Sockets, journal and control plane of one boot.

    Args:
        run: claimed by this process; stays claimed after `close`.
        hello: what the trainer adds to the answer of `hello` (its configuration, device and so on).
        limits: of the journal's segments.
        emitter: where the trainer leaves its events; None = one of its own.
        check: the trainer's check of a command's parameters in the run's state, before it is accepted;
            returns a note to send beside, or raises RequestError. Called in the I/O thread.
        parameters: what `param.get` answers; called in the I/O thread.
        kind: its methods, and what it says of itself.

    Raises:
        FolderError: the journal cannot be opened.
    """

    num_epochs = 0
    """Epochs that this boot has trained."""
    on_deleted: Callable[[], None] | None = None
    """Called in the I/O thread, once, when the log has told that the run's folder was deleted."""
    metrics: dict[str, object] | None = None
    """Address at which Prometheus may read the run, for `status`; None where it may not."""

    def __init__(
        self,
        run: RunFolder,
        *,
        hello: dict[str, Any],
        limits: JournalLimits = DEFAULT_LIMITS,
        emitter: Emitter | None = None,
        check: Callable[[Params, RunState], str | None] = lambda _params, _state: None,
        parameters: Callable[[], dict[str, Any]] = dict,
        kind: RunKind = TRAINING,
    ) -> None:
        self.run, self.kind = run, kind
        self.boot = secrets.token_hex(4)
        self.emitter = emitter or Emitter()
        self.emitter.overflow_into(run.path)
        self.mailbox, self.faults = Mailbox(), Faults()
        self.started = time.time_ns() // 1000
        self._state: RunState = "STARTING"
        self._state_lock, self._closing = threading.RLock(), threading.Event()
        self._beat = (0, 0, time.monotonic())
        self._silence = SilenceWatch(self.emitter.emit, kind.name, time.monotonic())
        self._bye: str | None = None
        self._num_subscribers = 0
        self._next_tick = self._next_heartbeat = self._next_view = 0.0
        self._subscriber_counts = SubscriberCounts()
        self._replies = ReplySender()
        self._local = LocalSockets(run, self.boot, self.started, lambda: self._state)
        self._displacement: str | None = None
        self._journal = Journal(run.events, limits)
        self.parameters, self.commands = parameters, CommandLog(max_ended=MAX_ENDED)
        self._publisher = Publisher(
            self.emitter,
            self._journal,
            run=run.id,
            boot=self.boot,
            send=self._send_event,
            note=self._note_command,
        )
        find = self._publisher.incidents.find
        self._immediate = ImmediateCommands(self.emitter.emit, self._journal.rotate, find)
        self._handler = RequestHandler(
            boot=self.boot,
            state=lambda: self._state,
            answer=Queries(self, self._publisher, self._journal, extra=hello).answer,
            mailbox=self.mailbox,
            emit=self._emit_audit,
            immediate=self._immediate,
            check=lambda params: check(params, self._state),
            note=self._silence_note,
        )
        self._handler.methods = kind.methods
        self.leases = self._immediate.leases
        self.clients, self.refusals = self._handler.clients, self._handler.refusals
        """Rates of the connections that ask; of what is refused, those beyond which nothing is audited."""
        self.submit = self._handler.submit
        """Sends the trainer a command of the run's own; in the I/O thread. See `RequestHandler.submit`."""
        self.before_end: Callable[[], None] = lambda: None
        """Called in the I/O thread at the end, when all is published; what it emits is published, too."""
        self._context: ZmqContext | None = None
        self._thread: threading.Thread | None = None

    @property
    def error(self) -> str | None:
        """Reason why events can be neither journalled nor published at present; None while all is well."""
        return self.faults.current.get("publish")

    @property
    def state(self) -> RunState:
        """The run's state, as the rules of the methods see it."""
        return self._state

    def set_state(self, state: RunState, reason: str = "") -> None:
        """Enter a state, at once for the control plane; from any thread, and safe in a signal handler.

        STOPPING is the last: what comes after it changes nothing and is not emitted.
        """
        with self._state_lock:
            if self._state != "STOPPING":
                self._state = state
                self.emitter.emit(RunStateChanged(state=state, reason=reason))

    def beat(self, round: int, epoch: int) -> None:
        """Say that the trainer lives; the heartbeat carries the age of this."""
        self._beat = (round, epoch, time.monotonic())
        self.num_epochs += 1

    def show_life(self) -> None:
        """Say that the trainer lives, though it has not finished an epoch since it said so last."""
        round_, epoch, _ = self._beat
        self._beat = (round_, epoch, time.monotonic())

    def observe(self, observer: Observer) -> None:
        """Show an observer all events that are published from now on; see `publisher.Observer`."""
        self._publisher.observers.append(observer)

    def done(self, command: Command, result: dict[str, Any]) -> None:
        """Report that a command has taken effect."""
        seconds = time.monotonic() - command.received
        self.emitter.emit(CommandDone(id=command.id, method=command.method, result=result, seconds=seconds))

    def progress(self, command: Command, done: int, total: int) -> None:
        """Report how far a command is, in epochs."""
        self.emitter.emit(CommandProgress(id=command.id, method=command.method, done=done, total=total))

    def failed(self, command: Command, kind: str, message: str) -> None:
        """Report that an accepted command could not be executed; `kind` is one of `errors.ERRORS`."""
        self.emitter.emit(CommandFailed(id=command.id, method=command.method, kind=kind, message=message))

    def flush(self, timeout: float = 1.0, *, synced: bool = False) -> bool:
        """Wait until the journal has been given what was emitted before; False where it was not in time.

        Before `start` nobody writes, so there is nothing to wait for.

        Args:
            synced: wait for the disk, too; not for one that refuses.
        """
        if self._thread is None:
            return False
        moment = self._publisher.now(synced=synced)
        end = time.monotonic() + timeout
        while self.error is None and time.monotonic() < end:
            if self._publisher.has(moment, synced=synced):
                return True
            if synced and self._journal.error is not None:
                return False
            if self._closing.wait(TICK_SECONDS / 5):
                return False
        return False

    @property
    def last_before(self) -> dict[str, int]:
        """The newest number of each stream before this boot."""
        return self._publisher.last_before

    @property
    def trainer_beat(self) -> TrainerBeat:
        """State, clock and age of the trainer's last beat."""
        round_, epoch, at = self._beat
        age = int((time.monotonic() - at) * 1000)
        return TrainerBeat(state=self._state, round=round_, epoch=epoch, beat_age_ms=age)

    def _silence_note(self) -> str | None:
        """The note beside `accepted` while the trainer, or the loop, hangs, or is in a very long epoch."""
        age = self.trainer_beat.beat_age_ms / 1000
        if age < SILENT_SECONDS:
            return None
        silent = f"has shown no sign of life for {age:.0f} s; it is executed when"
        if self.kind.name == "published":
            return f"the loop {silent} the loop asks for it"
        return f"the trainer {silent} the epoch ends"

    @property
    def subscribers(self) -> int:
        """Clients subscribed to the heartbeat; those of a gateway count as one."""
        return self._subscriber_counts[HEARTBEAT_TOPIC]

    @property
    def endpoints(self) -> dict[str, dict[str, str] | None]:
        """The three sockets by transport, so that whoever reached one finds the others."""
        return {"ipc": self._local.endpoints, "tcp": None}

    @property
    def wire_status(self) -> dict[str, object]:
        """Failures of the I/O thread by step, and those at present."""
        folder = {} if self._displacement is None else {"folder": self._displacement}
        return {
            "errors": dict(self.faults.counts),
            "failing": self.faults.current | folder,
            "sockets_restored": self._local.rebound,
        }

    @property
    def counters(self) -> dict[str, int]:
        """Requests handled, not requests, over the rate; answers undelivered, bytes of those not read."""
        return {
            "requests": self._handler.requests,
            "junk": self._handler.junk,
            "too_often": self._handler.clients.refused,
            "unanswered": self._replies.undelivered,
            "unread_bytes": self._replies.waiting_bytes,
        }

    def start(self) -> None:
        """Open the sockets, write the connection file, start the thread.

        Raises:
            FolderError: the sockets' folder cannot be used or a socket cannot be bound.
        """
        self._context = zmq.Context()
        try:
            self._local.open(self._context)
            self._local.write_connection()
        except FolderError:
            self._context.destroy(linger=0)
            self._local.remove()
            raise
        self._thread = threading.Thread(target=self._run, name="esper-wire", daemon=True)
        self._thread.start()

    def close(self, reason: str = "closed") -> None:
        """Publish what waits, send a last heartbeat, close all; at most 10 s. The lock stays with the run."""
        self._bye = reason
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                logger.error("the wire did not close within %d s; leaving it behind", CLOSE_SECONDS)
        else:
            self._journal.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._local.ev, self._local.qry, self._local.ctl):
            poller.register(socket, zmq.POLLIN)
        while not self._closing.is_set():
            if not self.faults.attempt("turn", self._take_turn, poller):
                time.sleep(TICK_SECONDS)
        self.faults.attempt("bye", self._say_bye)
        self._close_all()

    def _take_turn(self, poller: zmq.Poller) -> bool:
        """Wait for requests or the next tick, and serve them; a step that fails does not stop the others.

        Returns:
            Whether it could wait.
        """
        attempt, local = self.faults.attempt, self._local
        wait = max(0.0, self._next_tick - time.monotonic())
        events = attempt("poll", poller.poll, math.ceil(wait * 1000))
        ready = dict(events or ())
        if local.ctl in ready or events is None:
            attempt("ctl", self._serve_requests, "ctl", local.ctl, local.ctl in ready)
        if local.qry in ready or events is None:
            attempt("qry", self._serve_requests, "qry", local.qry, local.qry in ready)
        if local.ev in ready or events is None:
            attempt("subscriptions", self._subscriber_counts.update, local.ev)
        before, self._num_subscribers = self._num_subscribers, self.subscribers
        if self._num_subscribers > before:
            self._next_heartbeat = 0.0
        now = time.monotonic()
        if now >= self._next_tick:
            self._tick(now)
        if now >= self._next_heartbeat:
            attempt("folder", self._watch_folder)
            attempt("leases", self.leases.expire)
            attempt("silence", self._silence.look, now, self._beat[2], self._state, self._publisher.started)
            attempt("heartbeat", self._send_heartbeat)
            self._next_heartbeat = max(self._next_heartbeat + HEARTBEAT_SECONDS, now)
        return events is not None

    def _tick(self, now: float) -> None:
        waiting = self.faults.attempt("publish", self._publisher.tick) or 0
        self._next_tick = now if waiting >= MAX_TICK_EVENTS else now + TICK_SECONDS
        self.faults.attempt("file numbers", self._local.guard_file_numbers)
        self.faults.attempt("sockets", self._local.restore)
        if now >= self._next_view:
            self.faults.attempt("view", self._send_view)
            self._next_view = now + VIEW_SECONDS

    def _watch_folder(self) -> None:
        """Report that the run's folder was moved or deleted, or that it is back."""
        before, self._displacement = self._displacement, self.run.find_displacement()
        if self._displacement not in (None, before):
            logger.error("%s", self._displacement)
            if self.run.is_deleted and self.on_deleted is not None:
                self.on_deleted()
        elif self._displacement is None and before is not None:
            logger.warning("the run's folder %s is back", self.run.path)

    def _say_bye(self) -> None:
        for prepare in (lambda: None, self.before_end):
            self.faults.attempt("end", prepare)
            while self.faults.attempt("publish", self._publisher.tick):
                pass
        self._send_heartbeat()

    def _close_all(self) -> None:
        assert self._context is not None
        self.faults.attempt("close journal", self._journal.close)
        self.faults.attempt("close sockets", self._context.destroy, sockets.LINGER_MS)
        self.faults.attempt("remove sockets", self._local.remove)

    def _serve_requests(self, name: Socket, socket: zmq.Socket[bytes], has_one: bool) -> None:
        """Answer what waits; `has_one` where the poller has seen that, as to look again takes its time."""
        sent = 0
        for done in range(REQUESTS_PER_TURN):
            if sent > BYTES_PER_TURN or not ((has_one and not done) or is_waiting(socket)):
                return
            message = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            frames = [frame.bytes for frame in message]
            who = _claimed(frames, _peer_of(name, message[-1]))
            must_read = name == "qry" and self._replies.is_full(who)
            reply = self._handler.handle(name, frames, who, must_read=must_read)
            if reply is not None:
                self._replies.send(socket, reply, who)
                sent += sum(map(len, reply))

    def _note_command(self, event: object, ts: int) -> None:
        """Keep for `op.get` what became of accepted commands."""
        if not isinstance(event, CommandRefused):
            self.commands.fold(event, ts=ts)

    def _emit_audit(self, event: object) -> None:
        """Make it known to `op.get` before the answer leaves, which is before the event is numbered."""
        self._note_command(event, time.time_ns() // 1000)
        self.emitter.emit(event)

    def _send_event(self, frames: Frames) -> None:
        """Where it fails, readers replay what they miss."""
        self.faults.attempt("send", self._local.ev.send_multipart, frames, zmq.NOBLOCK)

    def _send_view(self) -> None:
        watched = self._subscriber_counts[VIEW_TOPIC] > 0
        lines, windows = self._publisher.view.take(watched=watched)
        if lines and watched:
            now = time.time_ns() // 1000
            self._send_event(encode_view(lines, windows, run=self.run.id, boot=self.boot, ts=now))

    def _send_heartbeat(self) -> None:
        self._send_event(
            encode_heartbeat(
                Heartbeat(
                    v=PROTOCOL_VERSION,
                    run=self.run.id,
                    boot=self.boot,
                    ts=time.time_ns() // 1000,
                    last=self._publisher.last,
                    dropped=self.emitter.dropped,
                    trainer=self.trainer_beat,
                    clients=self.subscribers,
                    bye=self._bye,
                )
            )
        )


def _peer_of(name: Socket, frame: zmq.Frame) -> Peer:
    """Who sent it: on `ctl` the kernel lets only the daemon's own user in, who may do everything."""
    try:
        address = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        address = ""
    peer = Peer.parse(address, "admin")
    return peer if name == "ctl" or peer.uid == os.getuid() else replace(peer, role="viewer")


def _claimed(frames: list[bytes], peer: Peer) -> Peer:
    """Whose a message is that a gateway passes on; a claim that cannot be read is nobody's."""
    if peer.role != "admin" or len(frames) < 2:
        return peer
    try:
        claim = Claim.decode(frames[1])
    except msgspec.DecodeError:
        return Peer()
    return peer if claim is None else claim.peer
