"""Orders of rank 0 to the other ranks, as typed messages."""

from __future__ import annotations

import msgspec

from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.control.seed_control import SeedAction


class BuildTrainer(msgspec.Struct, tag=True, frozen=True):
    """Build this rank's share of the run; the first order."""

    config: Config
    execution: Execution
    may_be_late: bool
    """Whether rank 0 asks at an epoch's end if it may pass, as it does on a GPU: then the others ask, too."""


class StartEpoch(msgspec.Struct, tag=True, frozen=True):
    """Pass this boundary."""

    layer_envs: list[int]
    """Envs that give layer statistics in the coming epoch."""


class SendReport(msgspec.Struct, tag=True, frozen=True):
    """Report the epoch that has ended before the next one is begun; other orders follow."""


class SendState(msgspec.Struct, tag=True, frozen=True):
    """Send what a checkpoint holds of this rank."""


class SetParameter(msgspec.Struct, tag=True, frozen=True):
    """Put a value in force."""

    key: str
    value: float


class ExecuteAction(msgspec.Struct, tag=True, frozen=True):
    """Germinate or prune by hand."""

    action: SeedAction


class KeepWaiting(msgspec.Struct, tag=True, frozen=True):
    """Stay at this boundary; rank 0 lives."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """End at this boundary."""


Order = (
    BuildTrainer | StartEpoch | SendReport | SendState | SetParameter | ExecuteAction | KeepWaiting | Shutdown
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Order).decode


def broadcast(process_group: ProcessGroup, order: Order) -> None:
    """Rank 0: send an order to all others."""
    if process_group.size > 1:
        process_group.broadcast_order(_encode(order))


def receive(process_group: ProcessGroup) -> Order:
    """The others: wait for the next order.

    Raises:
        RankLostError: rank 0 is gone.
    """
    order: Order = _decode(process_group.receive_order())
    return order
