"""The policy's step and update, compiled and not: seconds of both, in turn, in one process.

Shapes are those of the default run (8 envs, 24 epochs, 3 slots); an update makes all of its 16 steps. The
compiler's own minutes are not measured; `--seconds` is how long both are timed after it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.gae import gae
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.seeds.table import SlotTable

from .report import finish

SLOTS = 3
TARGETS = {"decide_speedup": (">=", 1.0), "update_speedup": (">=", 1.0)}


class Policy:
    """An agent in a world that never changes, where every op is legal and rewards are noise.

    Args:
        cfg: sizes.
        mode: of the compiler.
    """

    def __init__(self, cfg: Config, mode: str) -> None:
        self.cfg = cfg
        device = torch.device("cpu")
        self.compiler = Compiler("default" if mode == "default" else "off", device, cfg.episode_epochs)
        self.agent = Agent(cfg, slots=SLOTS, host_parameters=274, compiler=self.compiler)
        n = cfg.envs.count
        self._table, self._measurements = SlotTable.empty(n, SLOTS), Measurements.unmeasured(n, SLOTS)
        self._legal = torch.ones(n, len(Op), SLOTS, dtype=torch.bool)
        self._rollout = Rollout.zeros(cfg.episode_epochs, n, SLOTS)
        self._reward = torch.randn(cfg.episode_epochs, n, generator=torch.Generator().manual_seed(1))
        self._round = 0

    def play(self) -> None:
        """Decide for all epochs of a round."""
        self._round += 1
        self.agent.begin_episode(self._round)
        for epoch in range(self.cfg.episode_epochs):
            decision = self.agent.act(self._table, self._measurements, self._legal, epoch)
            self._rollout.store(epoch, decision, self._reward[epoch])

    def learn(self) -> None:
        """One update over that round."""
        assert self.agent.ppo is not None
        advantage, returns = self._returns()
        self.agent.ppo.update(self._rollout, advantage, returns)

    def _returns(self) -> tuple[Tensor, Tensor]:
        ppo = self.cfg.ppo
        return gae(self._rollout.reward, self._rollout.value, gamma=ppo.gamma, lam=ppo.gae_lambda)


def seconds_of(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="How long to measure, after compiling.")
def main(seconds: float) -> None:
    """Time deciding and learning, eager and compiled, in turn."""
    torch.set_num_threads(1)
    cfg = load(sets=["ppo.target_kl=0", "ppo.learning_rate=0.00001"])
    eager, compiled = Policy(cfg, "off"), Policy(cfg, "default")
    begun = time.perf_counter()
    for policy in (eager, compiled):
        for _ in range(3):
            policy.play()
            policy.learn()
    print(f"compiled in {time.perf_counter() - begun:.0f} s")
    reasons = {name: program.reason for name, program in compiled.compiler.programs.items()}
    assert not any(reasons.values()), reasons
    found: dict[str, list[float]] = {}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for name, policy in (("eager", eager), ("compiled", compiled)):
            found.setdefault(f"{name}_decide", []).append(seconds_of(policy.play) / cfg.episode_epochs)
            found.setdefault(f"{name}_update", []).append(seconds_of(policy.learn))
    figures = {f"{name}_ms": 1000 * statistics.median(times) for name, times in found.items()}
    for what in ("decide", "update"):
        ratios = zip(found[f"eager_{what}"], found[f"compiled_{what}"], strict=True)
        figures[f"{what}_speedup"] = statistics.median(slow / fast for slow, fast in ratios)
    finish("policy", figures, TARGETS)


if __name__ == "__main__":
    main()
