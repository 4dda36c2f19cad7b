"""The wire contract between the trainer daemon and everybody else.

from protocol import connect
with connect() as run:
    print(run.status())
"""

from .aio import AsyncSubscriber
from .client import Client, connect
from .subscriber import Subscriber

__all__ = ["AsyncSubscriber", "Client", "Subscriber", "connect"]
