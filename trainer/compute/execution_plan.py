"""Execution of a run on its machine: decided when it first starts, kept in its checkpoints.

A resumed run continues as it began, because other sizes and kernels round differently.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from esper_overwatch.trainer.config.schema import Config

Convolution = Literal["grouped", "native", "unfold"]
Amp = Literal["off", "bf16", "fp16"]
Plan = Literal["gather", "masked"]


class Execution(Struct, frozen=True, kw_only=True):
    """Choices of execution, configured or measured; sent in `run.started`."""

    group_size: int
    """Hosts per stacked program."""
    convolution: Convolution = "grouped"
    """Operations by which hosts and seeds convolve, see `stacked_ops.conv`."""
    amp: Amp = "off"
    """Precision of forward passes; see `hosts.precision`."""
    plan: Plan = "gather"
    """Seeds that are computed, see `hosts.slot_plan`."""

    @classmethod
    def as_configured(cls, config: Config) -> Execution:
        """As configured, without a choice: all hosts in one program unless a size is set."""
        envs = config.envs
        return cls(
            group_size=min(envs.group_size or envs.count, envs.count),
            convolution="grouped" if envs.convolution == "auto" else envs.convolution,
            amp="off" if config.amp.dtype == "auto" else config.amp.dtype,
            plan="gather" if envs.plan == "auto" else envs.plan,
        )

    def obeying(self, config: Config) -> Execution:
        """This execution with the configured plan, where one is; old checkpoints name none."""
        return self if config.envs.plan == "auto" else replace(self, plan=config.envs.plan)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Execution:
        """Read what `to_dict` gave, from a checkpoint."""
        return msgspec.convert(saved, cls)

    def to_dict(self) -> dict[str, Any]:
        """Fields as they are sent and saved."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        return tree

    def as_options(self) -> str:
        """The options that give another run the same."""
        return (
            f"envs.group_size={self.group_size} envs.convolution={self.convolution} amp.dtype={self.amp} "
            f"envs.plan={self.plan}"
        )
