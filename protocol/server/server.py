"""The daemon's side of the wire: one thread that owns all sockets and the journal.

The trainer's threads leave events in `emitter` and take commands from `mailbox`; they never touch a socket.
The thread wakes 20 times a second for telemetry and at once for a request.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket as system
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq

from . import sockets
from .clients import Clients
from .commands import Params, RunState, Socket
from .control import Command, ControlServer, Mailbox
from .emitter import Emitter
from .errors import FolderError
from .events import CommandDone, CommandFailed, CommandProgress, RunStateChanged
from .folders import write_atomically
from .immediate import Immediate
from .journal import DEFAULT_LIMITS, Journal, JournalLimits
from .keys import KeysUnusable
from .listener import Listener
from .operations import Operations
from .peer import Peer
from .publisher import Publisher
from .queries import Queries
from .runs import Connection, RunFolder
from .sockets import Audience
from .version import PROTOCOL_VERSION, __version__
from .wire import (
    HEARTBEAT_TOPIC,
    VIEW_TOPIC,
    Frames,
    Heartbeat,
    TrainerBeat,
    encode_heartbeat,
    encode_view,
)  # fmt: skip

logger = logging.getLogger(__name__)

TICK_S = 0.05
HEARTBEAT_S = 1.0
VIEW_S = 0.2
CLOSE_S = 10.0
SILENT_S = 60.0
REQUESTS_PER_TURN = 64
BYTES_PER_TURN = 4 * 1024 * 1024


class Server:
    """Sockets, journal and control plane of one boot.

    Args:
        run: claimed by this process; stays claimed after `close`.
        hello: what the trainer adds to the answer of `hello` (its configuration, device and so on).
        limits: of the journal's segments.
        listen: `tcp://host:port` to listen on as well, for keys that are authorized; empty = on no port.

    Raises:
        FolderError: the journal cannot be opened.
        KeysUnusable: it is to listen, and has no key or nobody is authorized.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        hello: dict[str, Any],
        limits: JournalLimits = DEFAULT_LIMITS,
        listen: str = "",
    ) -> None:
        self.run = run
        self.boot = secrets.token_hex(4)
        self.emitter = Emitter()
        self.mailbox = Mailbox()
        self.error: str | None = None
        """Why the I/O thread ended before `close`; None while all is well."""
        self.started = time.time_ns() // 1000
        self._state: RunState = "STARTING"
        self._changing = threading.RLock()
        self._beat = (0, 0, time.monotonic())
        self._bye: str | None = None
        self._ticks = 0
        self._audience = Audience()
        self._unanswered = 0
        self._listener = Listener(listen) if listen else None
        self._reload = False
        self._journal = Journal(run.events, limits)
        self.check: Callable[[Params], str | None] = lambda _: None
        """The trainer's own look at a command's parameters, before it is accepted: gives what to tell beside,
        or raises RequestError."""
        self.parameters: Callable[[], dict[str, Any]] = dict
        """What `param.get` answers; called in the I/O thread."""
        self.operations = Operations()
        self._publisher = Publisher(
            self.emitter,
            self._journal,
            run=run.id,
            boot=self.boot,
            send=self._send_event,
            note=self.operations.note,
        )
        self._immediate = Immediate(self.emitter.emit, self._journal.rotate)
        self._control = ControlServer(
            boot=self.boot,
            state=lambda: self._state,
            answer=Queries(self, self._publisher, self._journal, extra=hello).answer,
            mailbox=self.mailbox,
            emit=self._audit,
            immediate=self._immediate,
            check=lambda params: self.check(params),
            note=self._silence,
        )
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    # --- for the trainer ---------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """The run's state, as the rules of the methods see it."""
        return self._state

    def set_state(self, state: RunState, reason: str = "") -> None:
        """Enter a state, at once for the control plane; from any thread, and safe in a signal handler.

        STOPPING is the last: what comes after it changes nothing and is not told.
        """
        with self._changing:
            if self._state != "STOPPING":
                self._state = state
                self.emitter.emit(RunStateChanged(state=state, reason=reason))

    def beat(self, round: int, epoch: int) -> None:
        """Say that the trainer lives; the heartbeat carries the age of this."""
        self._beat = (round, epoch, time.monotonic())

    def done(self, command: Command, result: dict[str, Any]) -> None:
        """Tell that a command has taken effect."""
        seconds = time.time_ns() / 1e9 - command.received / 1e6
        self.emitter.emit(
            CommandDone(id=command.id, method=command.method, result=result, seconds=max(0.0, seconds))
        )

    def progress(self, command: Command, done: int, total: int) -> None:
        """Tell how far a command is, in epochs."""
        self.emitter.emit(CommandProgress(id=command.id, method=command.method, done=done, total=total))

    def failed(self, command: Command, kind: str, message: str) -> None:
        """Tell that an accepted command could not be carried out; `kind` is one of `errors.ERRORS`."""
        self.emitter.emit(CommandFailed(id=command.id, method=command.method, kind=kind, message=message))

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until the journal has been given what was emitted before; False where it was not in time."""
        end = time.monotonic() + timeout
        while self.error is None and time.monotonic() < end:
            if not any(self.emitter.waiting.values()):
                return self._tick_ends(end)
            time.sleep(TICK_S / 5)
        return False

    def _tick_ends(self, end: float) -> bool:
        """Wait for the tick that may have emptied the queues and not written yet."""
        tick = self._ticks
        while self.error is None and time.monotonic() < end:
            if self._ticks > tick:
                return True
            time.sleep(TICK_S / 5)
        return False

    @property
    def trainer_beat(self) -> TrainerBeat:
        """State, clock and age of the trainer's last beat."""
        round_, epoch, at = self._beat
        age = int((time.monotonic() - at) * 1000)
        return TrainerBeat(state=self._state, round=round_, epoch=epoch, beat_age_ms=age)

    @property
    def clients(self) -> Clients:
        """Who asks."""
        return self._control.clients

    @property
    def lease(self) -> dict[str, str | int] | None:
        """Who alone may command; None where there is no lease."""
        return self._immediate.leases.held

    def _silence(self) -> str | None:
        """What to tell whose command is accepted while the trainer hangs, or is in a very long epoch."""
        age = self.trainer_beat.beat_age_ms / 1000
        if age < SILENT_S:
            return None
        return f"the trainer has shown no sign of life for {age:.0f} s; it is carried out when the epoch ends"

    @property
    def subscribers(self) -> int:
        """Clients subscribed to the heartbeat."""
        return self._subscribed_to(HEARTBEAT_TOPIC)

    def _subscribed_to(self, topic: bytes) -> int:
        return self._audience[topic] + (self._listener.audience[topic] if self._listener else 0)

    @property
    def listening(self) -> dict[str, object] | None:
        """Where on TCP, for how many keys, how many were turned away; None where nowhere."""
        return self._listener.status() if self._listener else None

    def reload(self) -> None:
        """Read the allow-list anew, whether or not it looks changed; safe in a signal handler."""
        self._reload = True

    @property
    def counters(self) -> dict[str, int]:
        """Requests handled, messages that were none, requests over the rate, answers whose asker had gone."""
        return {
            "requests": self._control.requests,
            "junk": self._control.junk,
            "too_often": self._control.clients.refused,
            "unanswered": self._unanswered,
        }

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the sockets, write the connection file, start the thread.

        Raises:
            FolderError: the sockets' folder cannot be used or a socket cannot be bound.
        """
        folder = self.run.socket_folder()
        self._context = zmq.Context()
        try:
            self._ev = self._bind(sockets.publisher(self._context), folder / "ev")
            self._qry = self._bind(sockets.router(self._context), folder / "qry")
            self._ctl = sockets.router(self._context)
            self._ctl.set(zmq.IPC_FILTER_UID, os.getuid())
            self._bind(self._ctl, folder / "ctl")
            if self._listener is not None:
                self._listener.open(self._context)
            self._paths = {name: folder / name for name in ("ev", "qry", "ctl")}
            self._write_connection()
        except (FolderError, KeysUnusable):
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._main, name="esper-wire", daemon=True)
        self._thread.start()

    def close(self, reason: str = "closed") -> None:
        """Publish what waits, say good-bye, close all; takes 10 s at most. The lock stays with the run."""
        self._bye = reason
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                logger.error("the wire did not close within %d s; leaving it behind", CLOSE_S)
        else:
            self._journal.close()

    def _bind(self, socket: zmq.Socket[bytes], path: Path) -> zmq.Socket[bytes]:
        """The file of a daemon that died is removed, which the run's lock makes safe."""
        mask = os.umask(0o177)
        try:
            path.unlink(missing_ok=True)
            socket.bind(f"ipc://{path}")
        except (zmq.ZMQError, OSError) as error:
            raise FolderError(f"cannot open the socket {path}: {error.strerror}") from None
        finally:
            os.umask(mask)
        return socket

    def _write_connection(self) -> None:
        connection = Connection(
            v=PROTOCOL_VERSION,
            run=self.run.id,
            name=self.run.name,
            boot=self.boot,
            pid=os.getpid(),
            starttime=int(psutil.Process().create_time() * 1e6),
            started=self.started,
            endpoints={name: f"ipc://{path}" for name, path in self._paths.items()},
            host=system.gethostname(),
            version=__version__,
        )
        write_atomically(self.run.connection, msgspec.json.format(msgspec.json.encode(connection)))

    # --- the thread --------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._serve()
            self._leave()
        except Exception as error:
            logger.exception("the wire failed; training goes on without it")
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._close_all()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._ev, self._qry, self._ctl):
            poller.register(socket, zmq.POLLIN)
        if self._listener is not None:
            self._listener.register(poller)
        next_tick = next_heartbeat = next_view = time.monotonic()
        while not self._closing.is_set():
            wait = max(0.0, next_tick - time.monotonic())
            ready = dict(poller.poll(math.ceil(wait * 1000)))
            if self._ctl in ready:
                self._answer("ctl", self._ctl, _peer_on_ctl)
            if self._qry in ready:
                self._answer("qry", self._qry, _peer_on_qry)
            before = self.subscribers
            if self._ev in ready:
                self._audience.update(self._ev)
            if self._listener is not None:
                self._serve_listener(self._listener)
            if self.subscribers > before:
                next_heartbeat = 0.0
            now = time.monotonic()
            if now >= next_tick:
                more = self._publisher.tick()
                self._ticks += 1
                next_tick = now if more else now + TICK_S
                if now >= next_view:
                    self._send_view()
                    next_view = now + VIEW_S
            if now >= next_heartbeat:
                self._immediate.leases.expire()
                self._send_heartbeat()
                next_heartbeat = max(next_heartbeat + HEARTBEAT_S, now)

    def _serve_listener(self, listener: Listener) -> None:
        """Allow-list first: what it says now counts for everything that waits."""
        again, self._reload = self._reload, False
        listener.step(now=again)
        listener.authenticate()
        for name, socket in listener.routers:
            self._answer(name, socket, listener.peer)
        if listener.events is not None:
            listener.audience.update(listener.events)

    def _leave(self) -> None:
        while self._publisher.tick():
            pass
        self._send_heartbeat()

    def _close_all(self) -> None:
        assert self._context is not None
        with contextlib.suppress(OSError):
            self._journal.close()
        self._context.destroy(linger=sockets.LINGER_MS)
        for path in (*self._paths.values(), self.run.connection):
            with contextlib.suppress(OSError):
                path.unlink()

    def _answer(self, name: Socket, socket: zmq.Socket[bytes], peer: Callable[[zmq.Frame], Peer]) -> None:
        sent = 0
        for _ in range(REQUESTS_PER_TURN):
            if sent > BYTES_PER_TURN:
                return
            if not sockets.is_waiting(socket):
                return
            message = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            frames = [frame.bytes for frame in message]
            reply = self._control.handle(name, frames, peer(message[-1]))
            if reply is None:
                continue
            try:
                socket.send_multipart(reply, zmq.NOBLOCK)
                sent += sum(map(len, reply))
            except zmq.ZMQError as error:
                self._unanswered += 1
                logger.info("an answer on %s found nobody: %s", name, error.strerror)

    def _audit(self, event: object) -> None:
        """Known to `op.get` before the answer leaves, which is before the event is numbered."""
        self.operations.note(event, time.time_ns() // 1000)
        self.emitter.emit(event)

    def _send_event(self, frames: Frames) -> None:
        self._ev.send_multipart(frames, zmq.NOBLOCK)
        if self._listener is not None:
            self._listener.send(frames)

    def _send_view(self) -> None:
        watched = self._subscribed_to(VIEW_TOPIC) > 0
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


def _peer_on_ctl(frame: zmq.Frame) -> Peer:
    """The kernel lets only the daemon's own user in: they may everything."""
    return Peer.parse(_address(frame), "admin")


def _peer_on_qry(frame: zmq.Frame) -> Peer:
    peer = Peer.parse(_address(frame), "admin")
    return peer if peer.uid == os.getuid() else replace(peer, role="viewer")


def _address(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
