"""Policies that are only compared: schedules, hosts that begin with all their seeds, controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.policy.actions import ActionSpace, Logits
from esper_overwatch.trainer.policy.actor import Actor
from esper_overwatch.trainer.policy.baselines import NO_SEED, no_growth, schedules
from esper_overwatch.trainer.policy.observation import Observation

from .observations import ShuffledMeasurements

Choose = Callable[[Observation], Tensor]
"""Observations [T, N, ...] so far -> what each env plants, int64 [N, S], see `baselines.schedules`."""


@dataclass(frozen=True)
class ScheduledPolicy(FrozenPolicy):
    """A schedule for each host, chosen at an epoch by what the host has shown until then.

    Attributes:
        choose: called once in an episode.
        epoch: from 0; nothing is planted before it.
    """

    choose: Choose = lambda seen: torch.full((seen.base.shape[1], 0), NO_SEED)
    epoch: int = 0

    @classmethod
    def by(cls, choose: Choose, epoch: int = 0) -> ScheduledPolicy:
        """Decide at an epoch."""
        return cls("no_growth", choose=choose, epoch=epoch)

    @classmethod
    def of(cls, plant_NS: Tensor, epoch: int = 0) -> ScheduledPolicy:
        """Host i follows the schedule `plant_NS[i]`, whatever it shows."""
        return cls.by(lambda _: plant_NS, epoch)

    def make_actor(
        self, cfg: Config, population: Population, device: torch.device, first_env: int = 0
    ) -> Actor:
        actor = super().make_actor(cfg, population, device, first_env)
        actor.look_epochs = (self.epoch,)
        seen_T: list[Observation] = []
        planted: list[Tensor] = []

        def rule(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
            """Called once in each epoch of the one episode that an actor lives for."""
            seen_T.append(seen)
            if len(seen_T) <= self.epoch:
                return no_growth(space, legal, blueprint, seen)
            if not planted:
                planted.append(self.choose(Observation.stack(seen_T)).to(legal.device))
            return schedules(planted[0])(space, legal, blueprint, seen)

        actor.rule = rule
        return actor


@dataclass(frozen=True)
class StaticPolicy(FrozenPolicy):
    """Every host has its seeds, blended and for good, before its first epoch; nothing is done to them.

    Attributes:
        blueprint: [hosts, S] by place in the run's; `NO_SEED` where there is none.
        style: [hosts, S] of these.
    """

    blueprint: tuple[tuple[int, ...], ...] = ()
    style: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, blueprint: Sequence[Sequence[int]], style: Sequence[Sequence[int]]) -> StaticPolicy:
        """Seeds as `EpisodeTable.blueprint` and `style` have them."""
        rows, styles = (
            tuple(tuple(int(code) for code in row) for row in table) for table in (blueprint, style)
        )
        return cls("no_growth", blueprint=rows, style=styles)

    def make_actor(
        self, cfg: Config, population: Population, device: torch.device, first_env: int = 0
    ) -> Actor:
        assert first_env == 0, "all hosts are in this process"
        return _StaticActor(cfg, population, torch.tensor(self.blueprint), torch.tensor(self.style), device)


class _StaticActor(Actor):
    """Waits, and fossilises the seeds of fresh hosts before anything is trained."""

    def __init__(
        self, cfg: Config, population: Population, blueprint: Tensor, style: Tensor, device: torch.device
    ) -> None:
        self._population, self._blueprint, self._style = population, blueprint, style
        super().__init__(
            cfg, slots=len(population.slots), host_parameters=population.parameters_host, device=device
        )

    def begin_episode(self, round: int) -> None:
        super().begin_episode(round)
        if round > 0:
            plant_static_seeds(self._population, self._blueprint, self._style, round)


def plant_static_seeds(population: Population, blueprint_NS: Tensor, style_NS: Tensor, round_: int) -> None:
    """Give fresh hosts seeds that are born, blended and fossilised before the first epoch.

    Args:
        blueprint_NS: `NO_SEED` where there is none.
        style_NS: of those there are.
    """
    table, device = population.table, population.table.stage.device
    planted = (blueprint_NS != NO_SEED).to(device)
    table.blueprint.copy_(blueprint_NS)
    table.style.copy_(style_NS.clamp_min(0))
    table.stage.masked_fill_(planted, int(Stage.GERMINATED))
    population.draw_seeds(Topology.of(table.stage.cpu(), table.blueprint.cpu(), table.style.cpu()), round_)
    table.stage.masked_fill_(planted, int(Stage.FOSSILIZED))
    for column in (table.alpha, table.alpha_target):
        column.masked_fill_(planted, 1.0)


@dataclass(frozen=True)
class ShuffledPolicy(FrozenPolicy):
    """A policy that sees of each host what another one measures, the same other one for the whole episode.

    Attributes:
        policy: which.
    """

    policy: FrozenPolicy = field(default_factory=lambda: FrozenPolicy("no_growth"))

    @classmethod
    def of(cls, policy: FrozenPolicy) -> ShuffledPolicy:
        """Show it other hosts."""
        return cls(policy.kind, policy=policy)

    def configure(self, cfg: Config) -> Config:
        return self.policy.configure(cfg)

    def make_actor(
        self, cfg: Config, population: Population, device: torch.device, first_env: int = 0
    ) -> Actor:
        actor = self.policy.make_actor(cfg, population, device, first_env)
        order = draw_partners(population.table.shape[0], seed=0).to(device)
        actor.observation_builder = ShuffledMeasurements(actor.observation_builder, order)
        return actor


def draw_partners(count: int, seed: int) -> Tensor:
    """Another host for each: int64 [count], a permutation that leaves none of several in its place."""
    order = rng.permutation(rng.key(seed, rng.Purpose.ORDER, 0), count)
    partners = torch.empty_like(order)
    partners[order] = order.roll(-1)
    return partners
