"""Actors of N envs: a network or a fixed rule, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import exact_float32, filled
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds.table import SlotTable

from .actions import ActionSpace
from .baselines import (
    FIXED_BLUEPRINTS,
    NO_SEED,
    Rule,
    constant,
    fixed,
    heuristic,
    no_growth,
    random,
    schedules,
)
from .network import ActorCritic, Hidden
from .observation import Observation, ObservationBuilder
from .plans import PlanSpace, decide_plan
from .rollout import Decision

RULES: dict[str, Rule] = {"fixed": fixed, "heuristic": heuristic, "no_growth": no_growth, "random": random}
CONSTANT = "constant"
"""The kind of policy whose rule is made of `policy.constant`."""
EMPTY_SLOT = "none"
"""Stands in `policy.constant` for a slot in which nothing is planted."""


def constant_rule(
    plants: Sequence[str], blueprints: Sequence[str], slots: int, key: str = "policy.constant"
) -> Rule:
    """The rule of a constant schedule.

    Args:
        plants: for each slot a blueprint's name, or `EMPTY_SLOT`.
        blueprints: on offer, with their options.
        key: option that names the plants, for the error.

    Raises:
        ConfigError: it does not fit slots or blueprints.
    """
    kinds = [name.partition(":")[0] for name in blueprints]
    known = {
        **dict(zip(kinds, range(len(kinds)), strict=True)),
        **{name: i for i, name in enumerate(blueprints)},
    }
    if len(plants) != slots or not all(name == EMPTY_SLOT or name in known for name in plants):
        raise ConfigError(
            f"{key} = {', '.join(plants) or 'empty'}: must name for each of the {slots} slots one of "
            f"{', '.join(blueprints)}, or {EMPTY_SLOT}"
        )
    return constant(*(None if name == EMPTY_SLOT else known[name] for name in plants))


def decide(
    network: ActorCritic,
    space: ActionSpace,
    observation: Observation,
    hidden: Hidden,
    reset: Tensor,
    legal: Tensor,
    uniform: Tensor | None,
    waited: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, ...]:
    """One step for N envs: actions and log-probabilities [N, heads], V(s) [N], `waited` [N], h and c; last
    the likelihood [N, 1 + ops] of `Decision`.

    Args:
        uniform: [N, heads], draws the actions; None = greedy ones.
        waited: [N], what greedy actions depend on, see `ActionSpace.act_greedily`.
        temperature: divides the logits.
    """
    step = Observation(
        base=observation.base.unsqueeze(0),
        slot=observation.slot.unsqueeze(0),
        blueprint=observation.blueprint.unsqueeze(0),
    )
    out = network(step, hidden, reset.unsqueeze(0))
    logits = tuple(head[0] for head in out.logits)
    if temperature != 1.0:
        logits = tuple(head / temperature for head in logits)
    if uniform is None:
        actions, waited = space.act_greedily(logits, legal, waited.masked_fill(reset, 1.0))
    else:
        actions, waited = space.sample(logits, legal, uniform), torch.ones_like(waited)
    log_prob = space.evaluate(logits, actions, legal).log_prob
    ops = space.op_probabilities(logits, legal)
    likelihood = torch.cat([log_prob.sum(-1, keepdim=True).exp(), ops], -1)
    return actions, log_prob, network.value(out.value[0]), waited, out.h[0], out.c[0], likelihood


class Actor:
    """Decides for N envs in lockstep, and learns nothing.

    Args:
        cfg: of the run; `cfg.policy.kind` selects the rule where there is no network.
        network: what decides; None = a rule.
        host_parameters: of a host without seeds.
        first_env: global index of the first env.
        compiler: of the forward pass; None = uncompiled.
        graphs: of the forward pass; None = without.

    Attributes:
        greedy: whether the network acts as `ActionSpace.act_greedily` has it; nothing is drawn.
        rule: what decides in place of the network; None = the network does.
        look_epochs: whose decisions go by what empty slots would gain, see `hosts.growth_score`.

    Raises:
        ConfigError: `policy.constant` does not fit slots or blueprints.
    """

    def __init__(
        self,
        cfg: Config,
        network: ActorCritic | None = None,
        *,
        slots: int,
        host_parameters: int,
        device: torch.device | str = "cpu",
        first_env: int = 0,
        compiler: Compiler | None = None,
        graphs: CudaGraphs | None = None,
    ) -> None:
        n, blueprints = cfg.envs.count, cfg.seeds.blueprints
        self.cfg, self.network, self.greedy = cfg, network, cfg.policy.greedy
        self.space = ActionSpace(slots, len(blueprints), device)
        self.observation_builder = ObservationBuilder(
            n, slots, episode_epochs=cfg.episode_epochs, host_parameters=host_parameters, device=device
        )
        self.rule: Rule | None = None
        if network is None:
            if cfg.policy.kind == CONSTANT:
                self.rule = constant_rule(cfg.policy.constant, blueprints, slots)
            else:
                self.rule = RULES[cfg.policy.kind]
        self.plans: PlanSpace | None = None
        if cfg.policy.decision_epochs and network is not None:
            self.plans = PlanSpace(cfg.policy.decision_epochs, slots, device)
        self.look_epochs: Collection[int] = self.plans.epochs if self.plans is not None else ()
        self._no_plan = torch.full((n, slots), NO_SEED, device=device)
        self._none_free = torch.zeros((n, slots), dtype=torch.bool, device=device)
        graphs = graphs or CudaGraphs(on=False)
        self._draw = graphs.wrap("the draws", self._uniform)
        if network is not None:
            compiler = compiler or Compiler("off", torch.device(device))
            step: Callable[..., tuple[Tensor, ...]] = decide if self.plans is None else decide_plan
            if cfg.policy.temperature != 1.0:
                step = partial(step, temperature=cfg.policy.temperature)
            self._decide = graphs.wrap("the policy", compiler.wrap("the policy", step))
            self._hidden = network.initial(n)
            self._waited = torch.ones(*((n,) if self.plans is None else (n, slots)), device=device)
        kinds = [name.partition(":")[0] for name in blueprints]
        plant = next((name for name in FIXED_BLUEPRINTS if name in kinds), kinds[-1])
        self._fixed_blueprint = kinds.index(plant)
        self._envs = torch.arange(first_env, first_env + n, device=device)
        self.begin_episode(0)

    def begin_episode(self, round: int) -> None:
        """All envs start afresh; `round` keys the random numbers of their actions."""
        self._round = round
        self._reset = torch.ones_like(self._envs, dtype=torch.bool)
        self._plan = self._no_plan
        self.observation_builder.begin_episode()

    def reset_hidden(self, envs: Tensor) -> None:
        """Reset the recurrent state of the envs bool [N], whose hosts were rolled back."""
        self._reset = self._reset | envs

    @torch.no_grad()
    def act(self, table: SlotTable, measurements: Measurements, legal: Tensor, epoch: int) -> Decision:
        """Choose one action per env.

        Args:
            table: slots after the automatic transitions of this epoch.
            measurements: what the last epoch measured.
            legal: bool [N, ops, S].
            epoch: 0-based in the episode.
        """
        observation = self.observation_builder.observe(table, measurements, epoch)
        likelihood, plan, free = None, self._no_plan, self._none_free
        uniform = self._draw(filled((self._round, epoch), self._envs.device))
        if self.rule is not None:
            actions, log_prob = self._obey(self.rule, observation, legal, uniform)
            value = torch.zeros_like(observation.base[:, 0])  # a rule expects nothing
        elif self.plans is not None:
            if epoch in self.plans.epochs:
                free = self._plan == NO_SEED
            log_prob, value, likelihood, plan = self._decide_plan(observation, free, uniform, epoch)
            self._plan = torch.where(free, plan, self._plan)
            actions, _ = self._obey(schedules(self._plan), observation, legal, uniform[:, : len(HEAD_NAMES)])
        else:
            assert self.network is not None
            with exact_float32(self._envs.device):
                actions, log_prob, value, waited, *hidden, likelihood = self._decide(
                    self.network,
                    self.space,
                    observation,
                    self._hidden,
                    self._reset,
                    legal,
                    None if self.greedy else uniform,
                    self._waited,
                )
            self._waited, self._hidden = waited, (hidden[0], hidden[1])
        reset, self._reset = self._reset, torch.zeros_like(self._reset)
        return Decision(actions, observation, legal, log_prob, value, reset, plan, free, likelihood)

    def _obey(
        self, rule: Rule, observation: Observation, legal: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A rule's actions, and their log-probabilities, [N, heads] each."""
        logits = rule(self.space, legal, self._fixed_blueprint, observation)
        actions = self.space.sample(logits, legal, uniform)
        return actions, self.space.evaluate(logits, actions, legal).log_prob

    def _decide_plan(
        self, observation: Observation, free: Tensor, uniform: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probabilities, V(s), likelihood and plan of an epoch; NaN where nothing is decided or known."""
        assert self.plans is not None
        unknown = torch.full_like(observation.base[:, 0], torch.nan)
        silent = unknown.unsqueeze(1).expand(-1, 1 + len(Op))
        if epoch >= self.plans.horizon:
            return (
                torch.zeros_like(unknown).unsqueeze(1).expand(-1, len(HEAD_NAMES)),
                unknown,
                silent,
                self._no_plan,
            )
        with exact_float32(self._envs.device):
            plan, log_prob, value, waited, h, c, likelihood = self._decide(
                self.network,
                self.plans,
                observation,
                self._hidden,
                self._reset,
                free,
                None if self.greedy else uniform,
                self._waited,
            )
        self._waited, self._hidden = waited, (h, c)
        return log_prob, value, likelihood if epoch in self.plans.epochs else silent, plan

    def _uniform(self, place: Tensor) -> Tensor:
        """[N, ...], by which the actions of a round and epoch, int64 [2], are drawn."""
        key = rng.key(self.cfg.seed, rng.Purpose.ACTION, self._envs, *place)
        return rng.uniform(key, max(len(HEAD_NAMES), 2 * self.space.sizes[1]))

    def record_action(self, decision: Decision) -> None:
        """Record what was done, for the next observation."""
        self.observation_builder.record_action(decision.actions[:, 0], decision.actions[:, 1])
