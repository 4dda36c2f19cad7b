"""A long, lossy line: carries a daemon's three sockets late, now and then much later, never out of order.

What TCP makes of lost packets is what a reader sees: bytes that come a retransmission later. 40 ms each way
are 80 ms of round trip; a chunk in a hundred waits 200 ms more, and all behind it with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from pathlib import Path

from esper_overwatch.protocol.runs import find_run

CHUNK = 1448


class ThinLine:
    """While it is there, the run's connection file names it in place of the daemon's own sockets."""

    def __init__(self, name: str, *, delay_s: float = 0.04, loss: float = 0.01, seed: int = 0) -> None:
        self.delay_s, self.loss = delay_s, loss
        self.late = 0
        """Chunks that waited for a retransmission."""
        self._random = random.Random(seed)
        self._file = find_run(name).path / "connection.json"
        self._original = self._file.read_bytes()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def _listen(self, path: Path) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_unix_connection(path)
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

        await asyncio.start_unix_server(connected, path.with_name(path.name + ".thin"))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, line = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while True:
                at, data = await line.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                writer.write(data)
                await writer.drain()
                if not data:
                    return

        delivering = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(CHUNK):
                lost = self._random.random() < self.loss
                self.late += lost
                line.put_nowait((loop.time() + self.delay_s + (0.2 if lost else 0.0), data))
        except ConnectionError:
            pass
        finally:
            line.put_nowait((0.0, b""))
            with contextlib.suppress(ConnectionError):
                await delivering
            writer.close()

    def __enter__(self) -> ThinLine:
        connection = json.loads(self._original)
        self._thread.start()
        for name, endpoint in connection["endpoints"].items():
            listening = self._listen(Path(endpoint.removeprefix("ipc://")))
            asyncio.run_coroutine_threadsafe(listening, self._loop).result(5)
            connection["endpoints"][name] = endpoint + ".thin"
        self._file.write_text(json.dumps(connection))
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._file.exists():
            self._file.write_bytes(self._original)
