"""Events over TCP, sent by a thread and a libzmq context of its own.

libzmq handles subscriptions in the thread that owns the publisher, before anything else, and looks through
the topics of all subscribers for each that leaves: many connections with many topics hold that thread for
seconds. Here it is this one. Who reads over TCP waits meanwhile; requests, journal and local readers do not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from esper_overwatch.protocol.codec.frames import Frames
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting, terminate_context

from . import sockets

logger = logging.getLogger(__name__)

QUEUE_MESSAGES = 32
"""That wait for this thread on either end of its queue; further ones are lost, which their readers repair."""
TURN_SECONDS = 0.2
CLOSE_SECONDS = 2.0
FRAMES_PER_TURN = 64
_ENDPOINT = "inproc://events"

Attempt = Callable[..., Any]
"""Runs a step by its name, whose failure is counted and ends nothing; see `faults.Faults.attempt`."""


class EventForwarder:
    """Owns the publisher that it is given, in its thread; its methods are for one other thread.

    Args:
        note: sees each subscription that has come, in this object's thread.
        authenticate: answers the handshakes that wait on a socket, in this object's thread: while that is
            held, nobody joins, whose subscriptions could not be seen either.
        attempt: runs the thread's steps.

    Attributes:
        context: of the publisher, and of what belongs to its connections.
    """

    def __init__(
        self,
        note: Callable[[zmq.Frame], None],
        authenticate: Callable[[zmq.Socket[bytes]], None],
        attempt: Attempt,
    ) -> None:
        self._note = note
        self._authenticate = authenticate
        self._attempt = attempt
        self.context: ZmqContext = zmq.Context()
        self._wanted: zmq.Socket[bytes] | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._closing = threading.Event()
        self._in, self._out = self._make_end(), self._make_end()
        self._zap = sockets.make_zap(self.context)
        self._in.bind(_ENDPOINT)
        self._out.connect(_ENDPOINT)
        self._thread: threading.Thread | None = None

    def _make_end(self) -> zmq.Socket[bytes]:
        end: zmq.Socket[bytes] = self.context.socket(zmq.PAIR)
        end.set(zmq.LINGER, 0)
        end.set(zmq.SNDHWM, QUEUE_MESSAGES)
        end.set(zmq.RCVHWM, QUEUE_MESSAGES)
        return end

    def open(self, publisher: zmq.Socket[bytes]) -> None:
        """Start the thread."""
        self._wanted = publisher
        self._thread = threading.Thread(target=self._run, name="esper-events", daemon=True)
        self._thread.start()

    def publish_on(self, publisher: zmq.Socket[bytes] | None) -> None:
        """Give the thread another publisher, or none; what is sent from now on leaves by that one alone.

        The one before is closed by the thread, as soon as it is not held.
        """
        self._wanted = publisher
        self._wake()

    @property
    def has_publisher(self) -> bool:
        """True if it has one, or has not closed the one it had yet."""
        return self._wanted is not None or self._publisher is not None

    def send(self, frames: Frames) -> None:
        """Send to all subscribers; lost if the thread is held and its queue is full."""
        with contextlib.suppress(zmq.Again):
            self._out.send_multipart(frames, zmq.NOBLOCK)

    def _wake(self) -> None:
        with contextlib.suppress(zmq.Again):  # what fills the queue wakes it as well
            self._out.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Send what waits and close all; a thread that is held is left behind after `CLOSE_SECONDS`."""
        self._closing.set()
        if self._thread is None:
            self._close_own()
        else:
            self._wake()
            self._thread.join(CLOSE_SECONDS)
        self._out.close()
        if self._thread is not None and self._thread.is_alive():
            logger.warning("the publisher over TCP is held by subscriptions; leaving it behind")
        else:
            terminate_context(self.context)

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._in, self._zap):
            poller.register(socket, zmq.POLLIN)
        while not self._closing.is_set():
            self._attempt("tcp take over", self._take_over, poller)
            if self._attempt("tcp poll", poller.poll, TURN_SECONDS * 1000) is None:
                time.sleep(TURN_SECONDS)
            self._attempt("tcp subscriptions", self._note_subscriptions)  # first: a flood shuts its key out
            self._attempt("tcp authenticate", self._authenticate, self._zap)
            self._attempt("tcp forward", self._forward)
        while is_waiting(self._in) and self._attempt("tcp forward", self._forward):
            pass
        self._wanted = None
        self._attempt("tcp take over", self._take_over, poller)
        self._close_own()

    def _close_own(self) -> None:
        for socket in (self._in, self._zap):
            socket.close()

    def _take_over(self, poller: zmq.Poller) -> None:
        wanted = self._wanted
        if wanted is self._publisher:
            return
        if self._publisher is not None:
            poller.unregister(self._publisher)
            self._publisher.close()
            self._publisher = None
        if wanted is not None:
            poller.register(wanted, zmq.POLLIN)
            self._publisher = wanted

    def _note_subscriptions(self) -> None:
        if self._publisher is not None:
            for frame in sockets.receive_subscriptions(self._publisher):
                self._note(frame)

    def _forward(self) -> bool:
        """Send some of what waits; True, as `attempt` gives None for a failure."""
        for _ in range(FRAMES_PER_TURN):
            try:
                frames = self._in.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            if len(frames) > 1 and self._publisher is not None and self._publisher is self._wanted:
                self._publisher.send_multipart(frames, zmq.NOBLOCK)
        return True
