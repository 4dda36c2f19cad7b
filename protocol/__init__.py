"""The wire contract between the trainer daemon and its clients.

from protocol import connect
with connect() as run:
    print(run.status())
"""

from .client.aio import AsyncSubscriber
from .client.client import Client, connect
from .client.subscriber import Subscriber
from .messages import events

__all__ = ["AsyncSubscriber", "Client", "Subscriber", "connect", "events"]
