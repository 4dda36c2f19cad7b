"""Esper Overwatch: morphogenetic training with a live terminal.

from esper_overwatch import connect
with connect() as run:
    print(run.status())

from esper_overwatch import publish
with publish("my-run") as run:
    run.log(step=0, loss=0.7)

from esper_overwatch import open_run
losses = open_run("my-run").scalars("loss")["loss"].values

The three packages inside are links to the folders of the same name at the repository's top.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocol.client.aio import AsyncSubscriber
    from .protocol.client.client import Client, connect
    from .protocol.client.subscriber import Subscriber
    from .protocol.messages import events
    from .protocol.publishing.run import PublishedRun, publish
    from .trainer.export.opened_run import OpenedRun, open_run

__all__ = [
    "AsyncSubscriber",
    "Client",
    "OpenedRun",
    "PublishedRun",
    "Subscriber",
    "connect",
    "events",
    "open_run",
    "publish",
]

_HOMES = {
    "AsyncSubscriber": "protocol.client.aio",
    "Client": "protocol.client.client",
    "OpenedRun": "trainer.export.opened_run",
    "PublishedRun": "protocol.publishing.run",
    "Subscriber": "protocol.client.subscriber",
    "connect": "protocol.client.client",
    "open_run": "trainer.export.opened_run",
    "publish": "protocol.publishing.run",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: a viewer needs no server, and a command line that prints its help no client."""
    if name == "events":
        return import_module(".protocol.messages.events", __name__)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
