"""Choices about PPO on a stand-in for the hosts: each variant's return beside that of a reference.

Networks, update, reward and life cycle are the trainer's own. Only the hosts are replaced, by a formula of
what seeds do to the error in five tasks, fitted to returns measured on real hosts; a run of 1,920 episodes
takes seconds instead of an hour. What does not pay here is hardly worth trying on real hosts. Runs of a seed
have the same hosts and the same first network, so that variants are compared seed by seed. What is finished
is kept in `--out`, and a second start goes on.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from msgspec.structs import replace
from scipy.special import stdtrit
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Op, Stage
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.actor import Actor
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.gae import advantages
from esper_overwatch.trainer.policy.network import LSTM, Hidden
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.reward.compute import Reward, total
from esper_overwatch.trainer.reward.modes import RunContext
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

from .report import finish

KINDS = ("norm", "attention", "depthwise", "conv_light")
PARAMETERS = torch.tensor([17, 76, 153, 593])
HOST_PARAMETERS, SLOTS = 274, 3
TASKS: dict[str, tuple[float, float, tuple[tuple[float, ...], ...]]] = {
    "digits": (
        0.60,
        0.055,
        ((0.95, 0.95, 0.29, 0.22), (0.96, 0.96, 0.37, 0.27), (0.97, 0.97, 0.66, 0.67)),
    ),
    "texture": (0.75, 0.43, ((1.0, 1.0, 0.58, 0.56), (1.0, 1.0, 0.91, 0.90), (1.0, 1.0, 1.0, 1.0))),
    "layout": (0.86, 0.0, ((1.0, 1.0, 0.15, 0.05), (1.0, 1.0, 0.02, 0.02), (1.0, 1.0, 0.69, 0.55))),
    "quadrants": (0.79, 0.0, ((1.0, 1.0, 0.57, 0.50), (1.0, 1.0, 0.02, 0.02), (1.0, 1.0, 0.01, 0.01))),
    "histogram": (0.30, 0.28, ((1.05, 1.0, 1.0, 1.1),) * 3),
}
"""By task: error of a host by itself, least error, and what a seed of each kind leaves of it, by slot."""
LEARNING, SETTLING = 0.35, 0.4
"""Shares of the way that a seed's skill and a host's error go in an epoch; see `--settling`."""
ERROR_NOISE, HOST_NOISE, CONTRIBUTION_NOISE = 0.012, 0.02, 0.01
"""Standard deviations: of an epoch's accuracy, of a host's own error, of a contribution."""
CHANCE = 0.1
TRIAL_ROUNDS = 8
"""Rounds of 32 held-out hosts that the policy is tried on at the end."""
HELD_OUT = 1 << 20
"""Number of the first of them."""


class Variant(NamedTuple):
    """What differs from the reference.

    Attributes:
        sets: settings beside `COMMON`; ROUNDS stands for the run's rounds.
        critic: whether advantages use its values; if not, they are the returns themselves.
        memory: whether the LSTM knows the epochs before; if not, it is a feed-forward network.
    """

    sets: tuple[str, ...] = ()
    critic: bool = True
    memory: bool = True


REFERENCE = "decisions at 1, 3, 5"
VARIANTS = {
    REFERENCE: Variant(),
    "decision at 5": Variant(("policy.decision_epochs=5",)),
    "decisions at 0, 2, 5, 9": Variant(("policy.decision_epochs=0,2,5,9",)),
    "every epoch, eight heads": Variant(("policy.decision_epochs=",)),
    "1 copy": Variant(("envs.copies=1",)),
    "2 copies": Variant(("envs.copies=2",)),
    "8 copies": Variant(("envs.copies=8",)),
    "without critic": Variant(critic=False),
    "without critic, 1 copy": Variant(("envs.copies=1",), critic=False),
    "feed-forward": Variant(memory=False),
    "every epoch, eight heads, 1 copy": Variant(("policy.decision_epochs=", "envs.copies=1")),
}
COMMON = (
    *("device=cpu", "policy.decision_epochs=1,3,5", "envs.copies=4"),
    *("ppo.learning_rate=0.001", "ppo.target_kl=0.05", "ppo.entropy_coefficient=0.05"),
    *("ppo.entropy_final=0.005", "ppo.entropy_rounds=ROUNDS", "reward.rent=0.1"),
)
"""What each run has beside the preset `mixture`, whatever that has chosen since."""


class StandIn:
    """N hosts as a formula.

    Args:
        cfg: of the run.
        settling: share of the way that a host's error goes in an epoch.
    """

    def __init__(self, cfg: Config, settling: float) -> None:
        self.cfg, self.n, self._settling = cfg, cfg.envs.count, settling
        self.copies = cfg.envs.copies
        self.table = SlotTable.empty(self.n, SLOTS)
        self._tasks = list(TASKS.values())

    def begin_episode(self, round_: int) -> None:
        """Fresh hosts, each with a task; the same for a seed and a round."""
        self._random = torch.Generator().manual_seed(self.cfg.seed * 2_000_003 + round_)
        self.table.reset()
        task = torch.randint(0, len(self._tasks), (self.n,), generator=self._random)
        base, floor, leaves = (torch.tensor([t[i] for t in self._tasks])[task] for i in range(3))
        base += HOST_NOISE * self._noise()
        host = torch.arange(self.n) // self.copies * self.copies
        self.task, self._base, self._floor, self._leaves = task[host], base[host], floor[host], leaves[host]
        self._error = torch.full((self.n,), 1 - CHANCE)
        self._skill = torch.zeros(self.n, SLOTS)

    def run_epoch(self, epoch: int) -> Measurements:
        """Train, validate."""
        table, reward = self.table, self.cfg.reward
        live = is_in(table.stage, (*ISOLATED, *BLENDED))
        self._skill = torch.where(live, self._skill + (1 - self._skill) * LEARNING, 0.0)
        alpha = torch.where(is_in(table.stage, BLENDED), table.alpha, 0.0)
        self._error = self._error + self._settling * (self._aim(alpha) - self._error)
        contribution = torch.full((self.n, SLOTS), math.nan)
        for slot in range(SLOTS):
            less = alpha.clone()
            less[:, slot] = 0
            lost = self._aim(less) - self._aim(alpha) + CONTRIBUTION_NOISE * self._noise()
            contribution[:, slot] = torch.where(alpha[:, slot] > 0, lost, math.nan)
        counted, error = live, self._error
        if reward.only_fossilized and epoch >= self.cfg.episode_epochs - reward.final_epochs:
            counted = table.stage == Stage.FOSSILIZED
            error = error + self._aim(torch.where(counted, alpha, 0.0)) - self._aim(alpha)
            contribution = torch.where(counted, contribution, math.nan)
        self.accuracy = (1 - error + ERROR_NOISE * self._noise()).clamp(0.05, 0.99)
        table.record_contribution(contribution)
        found = Measurements.unmeasured(self.n, SLOTS)
        found.val_accuracy, found.train_accuracy = self.accuracy, self.accuracy + 0.01
        found.val_loss = found.train_loss = 2.3 * (1 - self.accuracy)
        found.contribution = contribution
        found.host_grad_norm = found.host_health = torch.ones(self.n)
        found.seed_grad_norm = torch.where(live, 0.3, math.nan)
        found.seed_health = torch.where(live, 1.0, math.nan)
        parameters = PARAMETERS[table.blueprint.clamp_min(0)]
        found.seed_parameters = torch.where(live, parameters, 0)
        self.added = torch.where(counted, parameters, 0).sum(1)
        found.parameters = HOST_PARAMETERS + self.added
        return found

    def _noise(self) -> Tensor:
        return torch.randn(self.n, generator=self._random)

    def _aim(self, alpha: Tensor) -> Tensor:
        """[N], the error that a host tends to; a seed that has not learnt yet helps less."""
        kinds = self.table.blueprint.clamp_min(0).unsqueeze(-1)
        left = 1 - (1 - self._leaves.gather(2, kinds).squeeze(-1)) * self._skill * alpha
        return torch.maximum(self._base * left.prod(1), self._floor)


class FeedForward(LSTM):
    """An LSTM that begins each step at zero."""

    def forward(self, x: Tensor, hidden: Hidden, reset: Tensor) -> tuple[Tensor, Tensor]:
        """See `LSTM.forward`."""
        return super().forward(x, hidden, torch.ones_like(reset))


class Course:
    """A run on the stand-in; of the variant, `critic` and `memory` count here."""

    def __init__(
        self, cfg: Config, settling: float = SETTLING, variant: Variant = VARIANTS[REFERENCE]
    ) -> None:
        self.cfg, self.hosts, self.critic = cfg, StandIn(cfg, settling), variant.critic
        self.agent = Agent(cfg, slots=SLOTS, host_parameters=HOST_PARAMETERS)
        if not variant.memory and self.agent.network is not None:
            self.agent.network.lstm.__class__ = FeedForward
        self.actor: Actor = self.agent
        self.lifecycle = Lifecycle(cfg)
        young = self.lifecycle.min_training_epochs
        context = RunContext(
            cfg.reward, cfg.ppo.gamma, cfg.episode_epochs, CHANCE, HOST_PARAMETERS, young, math.log(10)
        )
        self.reward = Reward(context, self.hosts.n, SLOTS)
        self.rollout = Rollout.zeros(cfg.episode_epochs, self.hosts.n, SLOTS)

    def play(self, round_: int) -> Tensor:
        """One episode of all hosts: returns [N]."""
        hosts, table = self.hosts, self.hosts.table
        hosts.begin_episode(round_)
        self.actor.begin_episode(round_)
        self.reward.begin_episode()
        measured = Measurements.unmeasured(hosts.n, SLOTS)
        calm = torch.zeros(hosts.n, dtype=torch.bool)
        for epoch in range(self.cfg.episode_epochs):
            self.lifecycle.advance(table, measured)
            legal = self.lifecycle.legal(table, measured)
            decision = self.actor.act(table, measured, legal, epoch)
            self.lifecycle.apply(table, decision.actions, legal, measured)
            self.actor.record_action(decision)
            measured = hosts.run_epoch(epoch)
            paid = self.reward(table, measured, epoch, calm, decision.actions[:, 0])
            self.rollout.store(epoch, decision, total(paid))
        return self.rollout.reward.sum(0)

    def learn(self) -> Any:
        """One update; its statistics."""
        assert self.agent.ppo is not None
        ppo, epochs = self.cfg.ppo, self.cfg.policy.decision_epochs
        value = self.rollout.value if self.critic else torch.zeros_like(self.rollout.value)
        advantage, returns = advantages(
            self.rollout.reward, value, ppo.gamma, ppo.gae_lambda, epochs, self.cfg.envs.copies
        )
        return self.agent.ppo.update(self.rollout, advantage, returns)

    def trial(self, **policy: Any) -> tuple[dict[str, float], dict[str, float], float]:
        """On held-out hosts: mean return and added parameters by task, fossils per host.

        Args:
            policy: how the network acts, as in `policy.*`.
        """
        frozen = replace(self.cfg, policy=replace(self.cfg.policy, learn=False, **policy))
        self.hosts.copies = 1
        network = self.agent.network
        self.actor = Actor(frozen, network, slots=SLOTS, host_parameters=HOST_PARAMETERS)
        rounds = TRIAL_ROUNDS * 32 // self.hosts.n
        paid: list[list[float]] = [[] for _ in TASKS]
        added: list[list[float]] = [[] for _ in TASKS]
        fossils = []
        for round_ in range(HELD_OUT, HELD_OUT + rounds):
            returns = self.play(round_)
            fossils.append(float((self.hosts.table.stage == Stage.FOSSILIZED).sum(1).float().mean()))
            for i in range(len(TASKS)):
                paid[i] += returns[self.hosts.task == i].tolist()
                added[i] += self.hosts.added[self.hosts.task == i].tolist()
        means = (dict(zip(TASKS, map(statistics.fmean, rows), strict=True)) for rows in (paid, added))
        return (*means, statistics.fmean(fossils))  # type: ignore[return-value]


def constants(settling: float = SETTLING) -> tuple[float, float]:
    """Mean return on the held-out hosts: of the best constant schedule, and of the best for each task."""
    worth = []
    for plants in product(("none", "depthwise"), repeat=SLOTS):
        sets = ["policy.kind=constant", f"policy.constant={','.join(plants)}", "seed=1"]
        sets += ["device=cpu", "reward.rent=0.1"]
        course = Course(load(preset="mixture", sets=sets), settling)
        by_task = course.trial()[0]
        worth.append(list(by_task.values()))
    return max(map(statistics.fmean, worth)), statistics.fmean(map(max, zip(*worth, strict=True)))


def run(variant: Variant, seed: int, episodes: int, settling: float = SETTLING) -> dict[str, Any]:
    """Train, then try the policy; the figures of the last quarter and of the trials."""
    sizes = [item for item in variant.sets if item.startswith("envs.")]
    rounds = episodes // load(preset="mixture", sets=[*sizes, "ppo.minibatches=1"]).envs.count
    chosen = [item.replace("ROUNDS", str(rounds)) for item in (*COMMON, *variant.sets)]
    cfg = load(preset="mixture", sets=[f"seed={seed}", f"rounds={rounds}", *chosen])
    course, begun = Course(cfg, settling, variant), time.process_time()
    paid, updates = [], []
    for round_ in range(1, rounds + 1):
        paid.append(float(course.play(round_).mean()))
        updates.append(course.learn())
    seconds, last = time.process_time() - begun, max(1, rounds // 4)
    sure = course.trial(temperature=0.5)[0]
    paid_by_task, added_by_task, fossils = course.trial(greedy=True)
    return {
        "return": statistics.fmean(paid[-last:]),
        "sure": statistics.fmean(sure.values()),
        "greedy": statistics.fmean(paid_by_task.values()),
        "greedy_by_task": paid_by_task,
        "added_by_task": added_by_task,
        "fossils": fossils,
        "explained": statistics.fmean(u.explained_variance for u in updates[-last:]),
        "within": statistics.fmean(u.explained_variance_within for u in updates[-last:]),
        "steps": statistics.fmean(u.minibatches for u in updates[-last:]),
        "entropy": statistics.fmean(u.entropy for u in updates[-last:]),
        "wait": statistics.fmean(float(u.op_fraction[Op.WAIT]) for u in updates[-last:]),
        "seconds": seconds,
    }


Found = dict[tuple[str, int], dict[str, Any]]
"""Figures of finished runs by variant and seed."""


def compare(found: Found, name: str, figure: str) -> tuple[float, float]:
    """Mean and half width of the 95 % interval of a variant's difference to the reference, seed by seed."""
    seeds = [s for n, s in found if n == name and (REFERENCE, s) in found]
    differences = [found[name, s][figure] - found[REFERENCE, s][figure] for s in seeds]
    if len(differences) < 2:
        return (differences or [math.nan])[0], math.nan
    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), float(stdtrit(len(differences) - 1, 0.975)) * spread


def table(found: Found) -> list[str]:
    """Markdown, a row per variant; `histogram`: parameters added where every seed only costs."""
    lines = [
        "| variant | seeds | return | − reference's | at temperature .5 | − reference's | greedy | "
        "− reference's | histogram | fossils | EV envs | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(n for n, _ in found):
        rows = [row for (n, _), row in found.items() if n == name]
        shown = [name, str(len(rows))]
        for figure in ("return", "sure", "greedy"):
            middle, half = compare(found, name, figure)
            shown += [f"{_mean(rows, figure):.3f}", f"{middle:+.3f} ± {half:.3f}"]
        bare = statistics.fmean(row["added_by_task"]["histogram"] for row in rows)
        shown += [f"{bare:.0f}", f"{_mean(rows, 'fossils'):.1f}", f"{_mean(rows, 'within'):.2f}"]
        shown.append(f"{_mean(rows, 'seconds'):.0f}")
        lines.append("| " + " | ".join(shown) + " |")
    return lines


def _mean(rows: list[dict[str, Any]], figure: str) -> float:
    return statistics.fmean(row[figure] for row in rows)


@click.command()
@click.option("--episodes", default=1920, show_default=True, help="Episodes of each run.")
@click.option("--seeds", default=5, show_default=True, help="Runs of each variant.")
@click.option(
    "--only", multiple=True, help="A variant to try, beside the reference; may be repeated. Default: all."
)
@click.option(
    "--settling",
    default=SETTLING,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the way that a host's error goes in an epoch; 0.2 tells a task as late as real hosts do.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File of finished runs.")
def main(episodes: int, seeds: int, only: tuple[str, ...], settling: float, out: Path) -> None:
    """Try the variants."""
    torch.set_num_threads(1)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else []:
        row = json.loads(line)
        if (row["episodes"], row.get("settling", SETTLING)) == (episodes, settling):
            found[row["variant"], row["seed"]] = row
    for seed in range(1, seeds + 1):
        for name in [n for n in VARIANTS if n == REFERENCE or not only or n in only]:
            if (name, seed) in found:
                continue
            row = {"variant": name, "seed": seed, "episodes": episodes, "settling": settling}
            row |= run(VARIANTS[name], seed, episodes, settling)
            found[name, seed] = row
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(f"{name} seed {seed}: return {row['return']:.3f} greedy {row['greedy']:.3f}", err=True)
    click.echo("\n".join(table(found)))
    best, oracle = constants(settling)
    click.echo(f"best constant of depthwise seeds {best:.3f}, best of each task {oracle:.3f}")
    figures = {"best_constant": best, "best_of_each_task": oracle}
    figures |= {
        f"{figure}_{name}": _mean([row for (n, _), row in found.items() if n == name], figure)
        for name in dict.fromkeys(n for n, _ in found)
        for figure in ("return", "sure", "greedy")
    }
    finish("policy_variants", figures, {})


if __name__ == "__main__":
    main()
