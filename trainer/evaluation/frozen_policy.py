"""A policy that does not learn any more, or never did: what is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.policy.actor import CONSTANT, Actor
from esper_overwatch.trainer.policy.network import ActorCritic


@dataclass(frozen=True)
class FrozenPolicy:
    """A network, or a rule by its name.

    Attributes:
        kind: `ppo` for a network, else a rule, as in `policy.kind`.
        network: that of `ppo`.
        greedy: whether it acts as `ActionSpace.act_greedily` has it; nothing is drawn.
        plants: of `constant`: by slot the name of a blueprint, or `none`.
        temperature: at which its actions are drawn, where they are.
        decision_epochs: as `policy.decision_epochs`; None = the run's.
    """

    kind: str
    network: ActorCritic | None = None
    greedy: bool = True
    plants: tuple[str, ...] = ()
    temperature: float = 1.0
    decision_epochs: tuple[int, ...] | None = None

    @classmethod
    def learned(cls, network: ActorCritic, *, greedy: bool = True, temperature: float = 1.0) -> FrozenPolicy:
        """A network as it is when it acts."""
        return cls("ppo", network, greedy, temperature=temperature)

    @classmethod
    def constant(cls, *plants: str) -> FrozenPolicy:
        """The schedule that plants these at an episode's beginning."""
        return cls(CONSTANT, plants=plants)

    def configure(self, cfg: Config) -> Config:
        """A run's configuration, with this policy in place of its own."""
        policy: dict[str, Any] = {
            "kind": self.kind,
            "greedy": self.greedy,
            "temperature": self.temperature,
            "constant": self.plants,
        }
        if self.decision_epochs is not None:
            policy["decision_epochs"] = self.decision_epochs
        return replace(cfg, policy=replace(cfg.policy, **policy))

    def make_actor(
        self, cfg: Config, population: Population, device: torch.device, first_env: int = 0
    ) -> Actor:
        """Make the actor that decides for the hosts of a population.

        Args:
            cfg: of `configure`.
            first_env: global index of the first host.

        Raises:
            ConfigError: a constant schedule does not fit.
        """
        return Actor(
            cfg,
            self.network,
            slots=len(population.slots),
            host_parameters=population.parameters_host,
            device=device,
            first_env=first_env,
        )
