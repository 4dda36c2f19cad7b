"""The policy of N envs: PPO, or a fixed rule behind the same interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.schema import Config

from .actions import ActionSpace
from .actor import Actor
from .network import ActorCritic
from .observation import LAYOUT_VERSION
from .ppo import PPO
from .saved_policy import PolicyMismatch as PolicyMismatch
from .saved_policy import SavedPolicy


class Agent(Actor):
    """Decides for N envs in lockstep, and learns.

    Args:
        cfg: of the run; `cfg.policy.kind` selects the policy.
        host_parameters: of a host without seeds.
        first_env: global index of the first env.
        process_group: the ranks that learn together.
        compiler: of forward pass and loss; None = uncompiled.
        graphs: of forward pass and minibatches; None = without.

    Attributes:
        ppo: the learner, or None where the policy is a fixed rule.

    Raises:
        PolicyMismatch: `policy.file` cannot be read, or does not fit.
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
        compiler = compiler or Compiler("off", torch.device(device))
        network = None
        if cfg.policy.kind == "ppo":
            space = ActionSpace(slots, len(cfg.seeds.blueprints), device)
            network = ActorCritic(space, cfg.policy.hidden, cfg.seed, plans=bool(cfg.policy.decision_epochs))
            if cfg.policy.file:
                SavedPolicy.read(Path(cfg.policy.file)).load_into(network, cfg, slots)
            network.to(device)
        super().__init__(
            cfg,
            network,
            slots=slots,
            host_parameters=host_parameters,
            device=device,
            first_env=first_env,
            compiler=compiler,
            graphs=graphs,
        )
        self.ppo: PPO | None = None
        if network is not None:
            decisions = self.plans or self.space
            self.ppo = PPO(network, decisions, cfg.ppo, cfg.seed, process_group, compiler, cfg.rounds, graphs)

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
                "waited": self._waited,
                "plan": self._plan,
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
            self._waited = state["waited"].to(device)
            self._plan = state["plan"].to(device)
