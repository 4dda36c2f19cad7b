"""The reader for asyncio:

async with AsyncSubscriber("digits-7f3a") as run:
    async for event in run.events():
        ...

It drives the `Subscriber` of scripts and screens from the event loop: when a socket's descriptor can be read,
and ten times a second for heartbeats and restarts. Cancelling a task loses nothing: what has been read and
not handed out stays for the next call. (`zmq.asyncio` can lose a message where a `recv` is cancelled:
pyzmq issue 1925.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import zmq

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.storage.folders import StrPath

from .items import Item, RequestOutcome
from .subscriber import Subscriber

POLL_SECONDS = 0.1
BUDGET_SECONDS = 0.01


class AsyncSubscriber:
    """Follows one run, in one event loop; see `Subscriber` for the arguments. For one consumer of items.

    Attributes:
        subscriber: state, statistics, heartbeat of the link; not to be drained elsewhere.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        streams: Sequence[Stream] = STREAMS,
        client: str = "python",
        home: StrPath | None = None,
        thin: bool = False,
    ) -> None:
        self.subscriber = Subscriber(name, streams=streams, client=client, home=home, thin=thin)
        self._items: deque[Item] = deque()
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._readable = asyncio.Event()
        self._watched: list[tuple[zmq.Socket[bytes], int]] = []

    async def next(self) -> Item | None:
        """The next item; None once the run has ended in order and all has been handed out."""
        while not self._items:
            if self._drain():
                continue
            if self.subscriber.state == "ended":
                return None
            await self._wait()
        return self._items.popleft()

    async def items(self) -> AsyncIterator[Item]:
        """Items as they come, until the run ends in order."""
        while (item := await self.next()) is not None:
            yield item

    async def events(self) -> AsyncIterator[Event]:
        """Events as they come, until the run ends in order."""
        async for item in self.items():
            if isinstance(item, Event):
                yield item

    async def request(
        self, method: str, params: dict[str, Any] | None = None, deadline_s: float = 10.0, reason: str = ""
    ) -> dict[str, Any]:
        """Ask something and give its result; events that come meanwhile stay for `next`.

        Raises:
            RequestError: the daemon refused, or did not answer before the deadline (`no_reply`).
        """
        id_ = self.subscriber.request(method, params, deadline_s, reason)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[id_] = answer
        try:
            while not answer.done():
                if not self._drain():
                    await self._wait()
            return answer.result()
        finally:
            del self._replies[id_]

    def _drain(self) -> bool:
        """Take what there is; whether there was anything."""
        items = self.subscriber.drain(BUDGET_SECONDS)
        for item in items:
            if not isinstance(item, RequestOutcome) or item.id not in self._replies:
                self._items.append(item)
            elif item.error is not None:
                self._replies[item.id].set_exception(item.error)
            else:
                self._replies[item.id].set_result(item.result or {})
        return bool(items)

    async def _wait(self) -> None:
        """Sleep until a socket may have something, at most `POLL_SECONDS`.

        A ZeroMQ socket's descriptor reports changes only: it is waited for once a drain has found nothing.
        """
        self._watch()
        self._readable.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.subscriber.patience(POLL_SECONDS)):
                await self._readable.wait()

    def _watch(self) -> None:
        """Have the loop watch the sockets that there are now."""
        sockets = self.subscriber.sockets
        if sockets == [socket for socket, _ in self._watched]:
            return
        self._unwatch()
        loop = asyncio.get_running_loop()
        for socket in sockets:
            descriptor = int(socket.get(zmq.FD))
            loop.add_reader(descriptor, self._readable.set)
            self._watched.append((socket, descriptor))

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for _, descriptor in self._watched:
            loop.remove_reader(descriptor)
        self._watched.clear()

    async def close(self) -> None:
        """Close the sockets."""
        self._unwatch()
        self.subscriber.close()

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
