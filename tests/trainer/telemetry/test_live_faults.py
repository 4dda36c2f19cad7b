"""Faults in a run as it trains: the real loop, recorder, server and journal; each is raised where it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages.events import Anomaly, LogLine
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.daemon.daemon import Daemon
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.host_group import HostGroup
from esper_overwatch.trainer.policy.ppo import PPO
from tests.cases import mostly_nightly

SICK = 2
ENV = f"env{SICK:02d}"
SMALL = (
    "envs.count=4",
    "envs.threads=1",
    "envs.group_size=4",
    "task.batches_per_epoch=2",
    "policy.hidden=32",
)


class Live:
    """A daemon's parts, trained round by round in this process."""

    def __init__(self, home: Path, *sets: str) -> None:
        torch.set_num_threads(1)
        self.run = RunFolder.claim("live", home=home)
        config = configured(sets=[*SMALL, *sets])
        self.daemon = Daemon(
            self.run, config, torch.device("cpu"), load("digits"), resume=None, process_group=ProcessGroup()
        )
        self.trainer = self.daemon.trainer
        self.daemon.server.start()
        self.daemon.server.set_state("TRAINING")
        self._fault: Callable[[], None] | None = None
        self._run_epoch = self.trainer.population.run_epoch
        self.trainer.population.run_epoch = self._with_fault  # type: ignore[method-assign]

    @property
    def group(self) -> HostGroup:
        (group,) = self.trainer.population.groups
        return group

    @property
    def ppo(self) -> PPO:
        assert self.trainer.agent.ppo is not None
        return self.trainer.agent.ppo

    def rounds(self, count: int, fault: Callable[[], None] | None = None) -> list[tuple[int, Anomaly]]:
        """Train, with the fault before every epoch.

        Returns:
            What was raised: epochs since the first of these, and the anomaly.
        """
        before = len(self.anomalies())
        self._fault = fault
        first = self.trainer.round
        for _ in range(count):
            self.trainer.play(self.daemon.hooks)
            self.trainer.end_round(self.daemon.hooks)
        length = self.trainer.cfg.episode_epochs
        return [
            ((event.ctx.round - first - 1) * length + event.ctx.epoch, event.data)
            for event in self.anomalies()[before:]
            if event.data.active
        ]

    def is_raised(self, kind: str, source: str) -> bool:
        """Whether it was raised and has not ended."""
        mine = [e.data.active for e in self.anomalies() if (e.data.kind, e.data.source) == (kind, source)]
        return bool(mine and mine[-1])

    def anomalies(self) -> list[Any]:
        assert self.daemon.server.flush(timeout=300)
        return [event for event in read(self.run.events) if event.type == "anomaly"]

    def close(self) -> None:
        self.daemon.commands.close()
        self.daemon.server.close()
        self.run.release()

    def _with_fault(self, *args: Any, **kwargs: Any) -> Any:
        if self._fault is not None:
            self._fault()
        return self._run_epoch(*args, **kwargs)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    made: list[Live] = []

    def make(*sets: str) -> Live:
        made.append(Live(tmp_path, *sets))
        return made[-1]

    yield make
    for one in made:
        one.close()


def loss_scaled(live: Live, factor: float) -> Callable[[], None]:
    """The sick env's loss, and so every gradient of its host and seeds, times a factor."""
    gradients = live.group.gradients

    def scaled(*args: Any, **kwargs: Any) -> Any:
        loss, hits, found = gradients(*args, **kwargs)
        for gradient in found.values():
            gradient[SICK] *= factor
        return loss, hits, found

    live.group.gradients = scaled  # type: ignore[method-assign]
    return lambda: None


def poisoned(live: Live) -> Callable[[], None]:
    def poison() -> None:
        live.group.weights["head.bias"].data[SICK, 0] = math.nan

    return poison


def slowed(live: Live) -> Callable[[], None]:
    """The data path works several usual epochs longer, for some epochs."""
    seconds = [e.data.seconds for e in read(live.run.events) if e.type == "epoch"]
    usual = sorted(seconds)[len(seconds) // 2]
    pauses = iter([6 * usual] * 12)

    def work() -> None:
        end = time.monotonic() + next(pauses, 0.0)
        while time.monotonic() < end:
            pass

    return work


def flooded(live: Live) -> Callable[[], None]:
    """However fast the server empties it meanwhile."""
    emitter = live.daemon.server.emitter

    def flood() -> None:
        refused = emitter.dropped["log"]
        while emitter.dropped["log"] < refused + 100:
            emitter.emit(LogLine(level="INFO", logger="test", message="flood"))

    return flood


def frozen(live: Live) -> Callable[[], None]:
    """Nothing is learned any more."""

    def freeze() -> None:
        live.group.set_learning_rate(0.0)

    return freeze


def logits_collapsed(live: Live) -> Callable[[], None]:
    live.ppo.network.heads["tempo"].bias.data[0] += 50.0  # type: ignore[operator, union-attr]
    return lambda: None


def moves_too_far(live: Live) -> Callable[[], None]:
    live.ppo.configure(learning_rate=0.5)
    return lambda: None


def critic_broken(live: Live) -> Callable[[], None]:
    def scramble() -> None:
        live.ppo.network.critic.weight.data.fill_(20.0)

    return scramble


def state_saturated(live: Live) -> Callable[[], None]:
    lstm = live.ppo.network.lstm

    def push() -> None:
        gates: Tensor = lstm.input.bias.data
        gates[: 3 * lstm.hidden] = 10.0

    return push


def state_dead(live: Live) -> Callable[[], None]:
    lstm = live.ppo.network.lstm

    def shut() -> None:
        lstm.input.bias.data[3 * lstm.hidden :] = -50.0

    return shut


@dataclass(frozen=True)
class Case:
    kind: str
    source: str
    fault: Callable[[Live], Callable[[], None]]
    within: int
    """Epochs of the fault by which it must be raised; an update counts as the last epoch of its round."""
    sets: tuple[str, ...]
    rounds: int = 1


RULED = ("policy.kind=fixed", "episode_epochs=24")
LEARNED = ("policy.kind=ppo", "episode_epochs=8")
CASES = {
    "a loss scaled up": Case("gradient_exploding", ENV, lambda r: loss_scaled(r, 1e3), 5, RULED),
    "a loss scaled down": Case("gradient_vanishing", ENV, lambda r: loss_scaled(r, 1e-9), 5, RULED),
    "a NaN in an env's weights": Case("loss_nonfinite", ENV, poisoned, 1, RULED),
    "a slowed data path": Case("slow_epochs", "system", slowed, 8, RULED),
    "a filled queue": Case("queue_drops", "telemetry", flooded, 1, RULED),
    "hosts that do not learn": Case("stalled", ENV, frozen, 24, RULED),
    "a head's logits collapsed": Case("entropy_collapse", "policy.tempo", logits_collapsed, 64, LEARNED, 8),
    "a policy that moves too far": Case("kl_spike", "policy", moves_too_far, 16, LEARNED, 2),
    "a broken critic": Case("value_collapse", "critic", critic_broken, 80, LEARNED, 10),
    "a saturated state": Case("lstm_saturated", "policy", state_saturated, 16, LEARNED, 2),
    "a dead state": Case("lstm_dead", "policy", state_dead, 16, LEARNED, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    mostly_nightly(CASES, "a loss scaled up", "a NaN in an env's weights", "a filled queue", "a dead state"),
)
def test_a_fault_is_raised_in_time_where_it_is(live: Callable[..., Live], name: str) -> None:
    case = CASES[name]
    run = live(*case.sets)
    calm = run.rounds(1)
    if case.source == "system":  # others may make the machine slow; the fault begins when they have not
        while run.is_raised(case.kind, case.source):
            calm = run.rounds(1)
    else:
        assert not [a for _, a in calm if (a.kind, a.source) == (case.kind, case.source)]
    raised = run.rounds(case.rounds, case.fault(run))
    mine = [(epoch, a) for epoch, a in raised if (a.kind, a.source) == (case.kind, case.source)]
    assert mine, f"not raised; raised were {[(epoch, a.kind, a.source) for epoch, a in raised]}"
    epoch, anomaly = mine[0]
    assert epoch <= case.within
    assert anomaly.value is not None
    assert anomaly.hint
    assert anomaly.since > 0
    if case.source.startswith("env") and case.fault is not frozen:
        others = {a.source for _, a in raised if a.kind == case.kind and not a.source.startswith(case.source)}
        assert not others, "of the other envs nothing is said"


@pytest.mark.nightly
def test_no_false_alarm_in_twenty_healthy_rounds(live: Callable[..., Live]) -> None:
    run = live("episode_epochs=24", "task.batches_per_epoch=6", "policy.kind=ppo")
    raised = run.rounds(20)
    of_training = [
        (epoch, anomaly.kind, anomaly.source, anomaly.value)
        for epoch, anomaly in raised
        if anomaly.source not in ("system", "telemetry")
    ]
    assert of_training == [], "what the machine is busy with is left out"
