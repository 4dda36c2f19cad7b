"""What readers of a gateway have of a run's end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from esper_overwatch import Subscriber, connect
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.gateway import Gateway
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import make_client
from tests.protocol.harness import Daemon, serving, until
from tests.protocol.sshd import free_ports


def test_last_events_of_a_run_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the gateway was busy while the run ended."""
    make_client("viewer", server=None, role="viewer")
    server, address = Server(RunFolder.claim("alpha"), hello={}), f"tcp://127.0.0.1:{free_ports(3)}"
    server.start()
    with serving(address) as gateway:
        _check_end(server, gateway, address, monkeypatch)


def _check_end(server: Server, gateway: Gateway, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, wait = threading.Event(), gateway._wait

    def wait_longer() -> None:
        wait()
        goes_on.wait(60.0)

    goes_on.set()
    with Subscriber(with_key(address, "viewer"), streams=("life",)) as subscriber:
        until(lambda: subscriber.drain() is None or subscriber.state == "live")
        monkeypatch.setattr(gateway, "_wait", wait_longer)
        goes_on.clear()
        for n in range(200):
            server.emitter.emit(ev.Mark(text=str(n), client="x", uid=None, pid=None))
        server.close()
        server.run.release()
        goes_on.set()
        texts: list[str] = []

        def has_ended() -> bool:
            marks = [item for item in subscriber.drain() if isinstance(item, Event) and item.type == "mark"]
            texts.extend(mark.data.text for mark in marks)
            return subscriber.state == "ended"

        until(has_ended)
    assert texts == [str(n) for n in range(200)]


def test_a_killed_run_is_told_as_not_live(daemon: Callable[..., Daemon]) -> None:
    make_client("viewer", server=None, role="viewer")
    process, address = daemon(), f"tcp://127.0.0.1:{free_ports(3)}"
    with serving(address), connect(with_key(address, "viewer")) as run:
        run.ping()
        process.kill()
        process.wait()

        def is_told() -> bool:
            with pytest.raises(RequestError) as refused:
                run.call("ping", deadline_s=0.5)
            return refused.value.kind == "not_found"

        until(is_told)
