"""Why an encrypted connection fails, in words; libzmq reports it to a monitor socket only."""

from __future__ import annotations

import errno
import secrets

import zmq
from zmq.utils.monitor import parse_monitor_message

REFUSED_EVENT = zmq.EVENT_HANDSHAKE_FAILED_AUTH
BROKEN_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
PUT_OFF_STATUS = 500
"""What a daemon answers a key that it lets in again later; 400 where it is not authorized."""
_BROKEN_OFF = (errno.EPIPE, errno.ECONNRESET)
MAX_BROKEN_OFF = 4
"""Handshakes in a row that may break off before the key is blamed, about 1 s with libzmq's pauses: a daemon
that many strangers connect to closes the oldest that have not authenticated, and a newcomer may be one."""
MAX_BROKEN_OFF_AGAIN = 40
"""The same once the key has been let in: then it is the key only where the daemon has got another one."""


class HandshakeMonitor:
    """Watches one socket from before its `connect` on.

    Args:
        socket: with CURVE set.
        key: what the client's key is called.
        address: where it leads.
    """

    def __init__(self, socket: zmq.Socket[bytes], key: str, address: str) -> None:
        self._socket = socket
        self._key, self._address = key, address
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(
            REFUSED_EVENT | BROKEN_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED,
            f"inproc://handshakes-{secrets.token_hex(8)}",
        )
        self._monitor.set(zmq.LINGER, 0)
        self._broken_off = 0
        self._patience = MAX_BROKEN_OFF

    def problem(self) -> str | None:
        """Describe what went wrong since the last call; None if nothing did. Never blocks."""
        while True:
            try:
                report = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return None
            event = report["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._broken_off, self._patience = 0, MAX_BROKEN_OFF_AGAIN
                continue
            if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and report["value"] in _BROKEN_OFF:
                self._broken_off += 1
                if self._broken_off < self._patience:
                    continue
            self._broken_off = 0
            return self._describe(event, report["value"])

    def _describe(self, event: int, value: int) -> str:
        if event == REFUSED_EVENT and value == PUT_OFF_STATUS:
            return (
                f"{self._address} does not let key {self._key} in for now: it has too many connections "
                "there, or has subscribed to too much; try again in a minute"
            )
        if event == REFUSED_EVENT:
            return (
                f"{self._address} does not let key {self._key} in: it is not authorized there, or no longer; "
                f"run on that machine: esper-daemon keys authorize {self._key} PUBLIC --role ROLE"
            )
        return (
            f"{self._address} and key {self._key} do not understand each other: the key is for another "
            "server, or no esper-daemon listens there; `esper-daemon keys list` on that machine shows its key"
        )

    def close(self) -> None:
        """Stop watching; to be called before the socket itself is closed."""
        if not self._socket.closed:
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
