"""The reader for asyncio: what the blocking one holds, and nothing lost where tasks are cancelled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from esper_overwatch import AsyncSubscriber
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import load


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(300):
            return await work()

    return asyncio.run(limited())


def test_events_come_in_order_and_whole(server: Server) -> None:
    async def work() -> list[Event]:
        got: list[Event] = []
        async with AsyncSubscriber("alpha", streams=("log",)) as subscriber:
            async for event in subscriber.events():
                got.append(event)
                if len(got) >= 500:
                    break
        return got

    with load(server, 2000):
        got = run(work)
    numbers = [event.seq for event in got]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_cancelling_the_reader_at_any_time_loses_nothing(server: Server) -> None:
    """A hundred tasks one after another, each cut off at a random moment under load."""
    rng = random.Random(7)

    async def work() -> list[Event]:
        got: list[Event] = []

        async def take(subscriber: AsyncSubscriber) -> None:
            async for event in subscriber.events():
                got.append(event)

        async with AsyncSubscriber("alpha", streams=("log",)) as subscriber:
            while len(got) < 300 or subscriber.subscriber.stats.events < 1000:
                task = asyncio.create_task(take(subscriber))
                await asyncio.sleep(rng.random() * 0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return got

    with load(server, 3000):
        got = run(work)
    server.flush()
    numbers = [event.seq for event in got]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    lines = {e.seq: e.line for e in read(server.run.events) if e.stream == "log"}
    assert all(lines[event.seq] == event.line for event in got)


def test_requests_are_answered_while_another_task_reads(server: Server) -> None:
    async def work() -> tuple[list[Any], int]:
        async with AsyncSubscriber("alpha") as subscriber:
            seen = 0

            async def take() -> None:
                nonlocal seen
                async for _ in subscriber.events():
                    seen += 1

            reader = asyncio.create_task(take())
            answers = await asyncio.gather(
                subscriber.request("status"),
                subscriber.request("mark", {"text": "hello"}),
                subscriber.request("resume"),
                return_exceptions=True,
            )
            while seen < 50:
                await asyncio.sleep(0.01)
            reader.cancel()
            return list(answers), seen

    with load(server, 500):
        (status, mark, resume), seen = run(work)
    assert status["name"] == "alpha"
    assert mark == {"state": "done"}
    assert isinstance(resume, RequestError)
    assert resume.kind == "wrong_state"
    assert seen >= 50


def test_event_loop_is_woken_by_socket_not_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.client.aio.POLL_SECONDS", 600.0)

    async def work() -> int:
        async with AsyncSubscriber("alpha", streams=("log",)) as subscriber:
            while not isinstance(await subscriber.next(), Reset):
                pass
            for n in range(5):
                server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(n)))
                while True:
                    item = await subscriber.next()
                    if isinstance(item, Event) and item.data.message == str(n):
                        break
            return 5

    async def patient() -> int:
        async with asyncio.timeout(300):
            return await work()

    assert asyncio.run(patient()) == 5


def test_it_ends_with_the_run(server: Server) -> None:
    async def work() -> list[str]:
        async with AsyncSubscriber("alpha") as subscriber:
            types = []
            async for event in subscriber.events():
                types.append(event.type)
                if event.type == "run.state":
                    server.emitter.emit(ev.RunStopped(reason="over", exit_code=0, rounds=1))
                    await asyncio.to_thread(server.close)
            return types

    assert run(work)[-1] == "run.stopped"
