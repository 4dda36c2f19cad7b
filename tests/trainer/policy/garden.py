"""A world small enough to learn in seconds: slots that pay once their seed is blended in.

Its rules are the table's: GERMINATE plants, ADVANCE blends (no training, no ramps), PRUNE clears, FOSSILIZE
keeps. A blended seed of the right kind lifts the accuracy of its env by what its slot is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op, Stage
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.gae import advantages
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.reward.compute import Reward, total
from esper_overwatch.trainer.reward.modes import RunContext
from esper_overwatch.trainer.seeds.table import SlotTable

WORTH = (0.25, 0.3, -0.1)
"""Accuracy that each slot adds with the right blueprint; half of it with a wrong one."""
RIGHT_BLUEPRINT = 3
BARREN = 0.3
HOST_PARAMETERS = 274
SEED_PARAMETERS = 590


@dataclass
class Garden:
    """N envs with one slot per entry of `WORTH`."""

    n: int
    table: SlotTable = field(init=False)

    def __post_init__(self) -> None:
        self.table = SlotTable.empty(self.n, len(WORTH))

    def legal(self) -> Tensor:
        """bool [N, ops, S]."""
        stage = self.table.stage
        legal = torch.zeros(self.n, len(Op), len(WORTH), dtype=torch.bool)
        legal[:, Op.WAIT] = True
        legal[:, Op.GERMINATE] = stage == Stage.DORMANT
        legal[:, Op.ADVANCE] = (stage == Stage.GERMINATED) | (stage == Stage.BLENDING)
        legal[:, Op.PRUNE] = (stage == Stage.GERMINATED) | (stage == Stage.BLENDING)
        legal[:, Op.FOSSILIZE] = stage == Stage.HOLDING
        return legal

    def apply(self, actions: Tensor) -> None:
        """Take actions [N, heads]."""
        env = torch.arange(self.n)
        op, slot, blueprint = actions[:, 0], actions[:, 1], actions[:, 2]
        stage = self.table.stage[env, slot]
        following = torch.tensor([0, Stage.GERMINATED, -1, 0, Stage.DORMANT, Stage.FOSSILIZED])[op]
        following = torch.where(op == Op.ADVANCE, stage * 0 + Stage.BLENDING, following)
        following = torch.where((op == Op.ADVANCE) & (stage == Stage.BLENDING), Stage.HOLDING, following)
        following = torch.where(op == Op.WAIT, stage, following)
        self.table.stage[env, slot] = following
        kind = torch.where(op == Op.GERMINATE, blueprint, self.table.blueprint[env, slot])
        self.table.blueprint[env, slot] = torch.where(following == Stage.DORMANT, -1, kind)
        self.table.epochs_in_stage += 1
        self.table.epochs_in_stage[env, slot] *= op == Op.WAIT

    def measure(self) -> Measurements:
        """The epoch's outcome."""
        worth = torch.tensor(WORTH).expand(self.n, -1)
        worth = torch.where(self.table.blueprint == RIGHT_BLUEPRINT, worth, worth / 2)
        blended = (self.table.stage >= Stage.BLENDING) & (self.table.stage <= Stage.FOSSILIZED)
        contribution = worth * blended
        accuracy = BARREN + contribution.sum(1)
        measurements = Measurements.unmeasured(self.n, len(WORTH))
        measurements.val_accuracy = measurements.train_accuracy = accuracy
        measurements.val_loss = measurements.train_loss = 1 - accuracy
        measurements.contribution = contribution.where(blended, torch.nan)
        self.table.contribution = measurements.contribution.clone()
        live = self.table.stage != Stage.DORMANT
        measurements.parameters = HOST_PARAMETERS + SEED_PARAMETERS * live.sum(1)
        return measurements


def make(
    cfg: Config, compiler: Compiler | None = None, graphs: CudaGraphs | None = None
) -> tuple[Agent, Reward]:
    terms = RunContext(cfg.reward, cfg.ppo.gamma, cfg.episode_epochs, 0.1, HOST_PARAMETERS, 2, 1.0)
    agent = Agent(cfg, slots=len(WORTH), host_parameters=HOST_PARAMETERS, compiler=compiler, graphs=graphs)
    return agent, Reward(terms, cfg.envs.count, len(WORTH))


def play(agent: Agent, reward: Reward, round: int) -> tuple[Rollout, Measurements]:
    """One episode of all envs."""
    cfg = agent.cfg
    garden = Garden(cfg.envs.count)
    measurements = Measurements.unmeasured(cfg.envs.count, len(WORTH))
    rollout = Rollout.zeros(cfg.episode_epochs, cfg.envs.count, len(WORTH))
    agent.begin_episode(round)
    reward.begin_episode()
    unharmed = torch.zeros(cfg.envs.count, dtype=torch.bool)
    for epoch in range(cfg.episode_epochs):
        decision = agent.act(garden.table, measurements, garden.legal(), epoch)
        garden.apply(decision.actions)
        agent.record_action(decision)
        measurements = garden.measure()
        rollout.store(
            epoch,
            decision,
            total(reward(garden.table, measurements, epoch, unharmed, decision.actions[:, 0])),
        )
    return rollout, measurements


def learn(agent: Agent, rollout: Rollout) -> UpdateStatistics:
    assert agent.ppo is not None
    cfg, epochs = agent.cfg.ppo, agent.cfg.policy.decision_epochs
    advantage, returns = advantages(rollout.reward, rollout.value, cfg.gamma, cfg.gae_lambda, epochs)
    return agent.ppo.update(rollout, advantage, returns)
