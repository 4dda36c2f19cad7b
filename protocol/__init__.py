"""The wire contract between the trainer daemon and everybody else.

from protocol import connect
with connect() as run:
    print(run.status())
"""

from .client import Client, connect
from .subscriber import Subscriber

__all__ = ["Client", "Subscriber", "connect"]
