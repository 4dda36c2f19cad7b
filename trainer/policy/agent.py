"""The policy of N envs: PPO, or a fixed rule behind the same interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from protocol.errors import EsperError
from protocol.messages.vocabulary import HEAD_NAMES
from trainer.compute import rng
from trainer.compute.compiler import Compiler
from trainer.compute.cuda_graphs import CudaGraphs
from trainer.compute.device import exact_float32
from trainer.compute.process_group import ProcessGroup
from trainer.config.schema import Config
from trainer.measurements import Measurements
from trainer.seeds.table import SlotTable

from .actions import ActionSpace
from .baselines import FIXED_BLUEPRINTS, Rule, fixed, no_growth, random
from .heuristic import heuristic
from .network import ActorCritic, Hidden
from .observation import LAYOUT_VERSION, Observation, ObservationBuilder
from .ppo import PPO
from .rollout import Decision

RULES: dict[str, Rule] = {"fixed": fixed, "heuristic": heuristic, "no_growth": no_growth, "random": random}


class PolicyMismatch(EsperError):
    """A checkpoint's policy does not fit the run's configuration or this version."""

    exit_code = 9


def decide(
    network: ActorCritic,
    space: ActionSpace,
    observation: Observation,
    hidden: Hidden,
    reset: Tensor,
    legal: Tensor,
    uniform: Tensor,
    floor_H: Tensor | None,
) -> tuple[Tensor, ...]:
    """One step for N envs: actions and log-probabilities [N, heads], V(s) [N], h and c."""
    step = Observation(
        base=observation.base.unsqueeze(0),
        slot=observation.slot.unsqueeze(0),
        blueprint=observation.blueprint.unsqueeze(0),
    )
    out = network(step, hidden, reset.unsqueeze(0))
    logits = tuple(head[0] for head in out.logits)
    actions = space.sample(logits, legal, uniform, floor_H)
    log_prob = space.evaluate(logits, actions, legal, floor_H).log_prob
    return actions, log_prob, network.value(out.value[0]), out.h[0], out.c[0]


class Agent:
    """Decides for N envs in lockstep.

    Args:
        cfg: of the run; `cfg.policy.kind` selects the policy.
        slots: S.
        host_parameters: of a host without seeds.
        device: where everything lives.
        first_env: global index of the first env.
        process_group: the ranks that learn together.
        compiler: of forward pass and loss; None = uncompiled.
        graphs: of the forward pass; None = without.

    Attributes:
        ppo: the learner, or None where the policy is a fixed rule.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        slots: int,
        host_parameters: int,
        device: torch.device | str = "cpu",
        first_env: int = 0,
        process_group: ProcessGroup | None = None,
        compiler: Compiler | None = None,
        graphs: CudaGraphs | None = None,
    ) -> None:
        n, blueprints = cfg.envs.count, cfg.seeds.blueprints
        self.cfg = cfg
        self.space = ActionSpace(slots, len(blueprints), device)
        self.observation_builder = ObservationBuilder(
            n, slots, episode_epochs=cfg.episode_epochs, host_parameters=host_parameters, device=device
        )
        self.ppo: PPO | None = None
        if cfg.policy.kind == "ppo":
            network = ActorCritic(self.space, cfg.policy.hidden, cfg.seed).to(device)
            compiler = compiler or Compiler("off", torch.device(device))
            self.ppo = PPO(network, self.space, cfg.ppo, cfg.seed, process_group, compiler, cfg.rounds)
            graphs = graphs or CudaGraphs(on=False)
            self._decide = graphs.wrap("the policy", compiler.wrap("the policy", decide))
            self._hidden = network.initial(n)
        kinds = [name.partition(":")[0] for name in blueprints]
        plant = next((name for name in FIXED_BLUEPRINTS if name in kinds), kinds[-1])
        self._fixed_blueprint = kinds.index(plant)
        self._envs = torch.arange(first_env, first_env + n, device=device)
        self.begin_episode(0)

    def begin_episode(self, round: int) -> None:
        """All envs start afresh; `round` keys the random numbers of their actions."""
        self._round = round
        self._reset = torch.ones_like(self._envs, dtype=torch.bool)
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
        key = rng.key(self.cfg.seed, rng.Purpose.ACTION, self._envs, self._round, epoch)
        uniform = rng.uniform(key, len(HEAD_NAMES))
        if self.ppo is None:
            logits = RULES[self.cfg.policy.kind](self.space, legal, self._fixed_blueprint, observation)
            actions = self.space.sample(logits, legal, uniform)
            log_prob = self.space.evaluate(logits, actions, legal).log_prob
            value = torch.zeros_like(observation.base[:, 0])  # a rule expects nothing
        else:
            with exact_float32(self._envs.device):
                actions, log_prob, value, *hidden = self._decide(
                    self.ppo.network,
                    self.space,
                    observation,
                    self._hidden,
                    self._reset,
                    legal,
                    uniform,
                    self.ppo.coefficients.floor_H,
                )
            self._hidden = hidden[0], hidden[1]
        reset, self._reset = self._reset, torch.zeros_like(self._reset)
        return Decision(actions, observation, legal, log_prob, value, reset)

    def record_action(self, decision: Decision) -> None:
        """Record what was done, for the next observation."""
        self.observation_builder.record_action(decision.actions[:, 0], decision.actions[:, 1])

    def state_dict(self) -> dict[str, Any]:
        """Everything the next decision and update depend on, in mid-episode too."""
        state: dict[str, Any] = {
            "kind": self.cfg.policy.kind,
            "layout": LAYOUT_VERSION,
            "round": self._round,
            "reset": self._reset,
            "observer": self.observation_builder.state_dict(),
        }
        if self.ppo is not None:
            state |= {
                "network": self.ppo.network.state_dict(),
                "ppo": self.ppo.state_dict(),
                "hidden": list(self._hidden),
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            PolicyMismatch: it is of another policy, layout or size.
        """
        if state["kind"] != (mine := self.cfg.policy.kind):
            raise PolicyMismatch(f"the checkpoint's policy has kind {state['kind']!r}, this run {mine!r}")
        if (layout := state["layout"]) != LAYOUT_VERSION:
            raise PolicyMismatch(
                f"the checkpoint's policy sees observations of layout {layout}, this version makes layout "
                f"{LAYOUT_VERSION}: start a new run, or resume this one with the version that made it"
            )
        device = self._envs.device
        self._round, self._reset = state["round"], state["reset"].to(device)
        self.observation_builder.load_state_dict(state["observer"])
        if self.ppo is not None:
            try:
                self.ppo.network.load_state_dict(state["network"])
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[-1].strip()
                raise PolicyMismatch(f"the checkpoint's policy network does not fit: {reason}") from None
            self.ppo.load_state_dict(state["ppo"])
            h, c = state["hidden"]
            self._hidden = h.to(device), c.to(device)
