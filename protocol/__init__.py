"""The wire contract between the trainer daemon and its clients.

from protocol import connect
with connect() as run:
    print(run.status())

from protocol import publish
with publish("my-run") as run:
    run.log(step=0, loss=0.7)
"""

from typing import TYPE_CHECKING, Any

from .client.aio import AsyncSubscriber
from .client.client import Client, connect
from .client.subscriber import Subscriber
from .messages import events

if TYPE_CHECKING:
    from .publishing.run import PublishedRun, publish

__all__ = ["AsyncSubscriber", "Client", "PublishedRun", "Subscriber", "connect", "events", "publish"]


def __getattr__(name: str) -> Any:
    """Load what only a publisher needs when it is asked for: a viewer needs no server."""
    if name in ("PublishedRun", "publish"):
        from .publishing import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
