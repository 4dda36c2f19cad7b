"""What rank 0 tells of a run that is changed, paused and resumed while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.events import (
    CommandDone,
    EpisodeFinished,
    EpochFinished,
    RoundFinished,
    RunStarted,
    TelemetryLevel,
)
from esper_overwatch.protocol.server.mailbox import Command
from esper_overwatch.trainer.telemetry.gpu_clock import GpuClock
from esper_overwatch.trainer.telemetry.timer import PhaseTimer
from tests.cases import nightly
from tests.trainer.control.test_commands import Rig, command
from tests.trainer.telemetry.test_gpu_clock import Device

torch.set_num_threads(1)
LIVELY = ("policy.kind=random", "seed=1")
"""Hosts that have seeds at their end."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*sets: str, **options: Any) -> Rig:
        for one in made:
            one.close()
        made[:] = []
        made.append(Rig(tmp_path, *sets, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("cut", [False, True], ids=["in one boot", "resumed"])
def test_returns_are_compared_with_the_rent_in_force(rig: Callable[..., Rig], cut: bool) -> None:
    """Before, what they are compared with was less the configured rent, whatever was set since."""
    one = rig(*LIVELY)
    until = (2, 3) if cut else None
    one.play({(1, 4): [command("param.set", key="reward.rent", value=0.5)]}, until=until)
    episodes = one.told(EpisodeFinished)
    if cut:
        one = rig(*LIVELY, resumed=True)
        one.play({})
        episodes += one.told(EpisodeFinished)
    growth = np.array([e.added_parameters for e in episodes]) / one.trainer.population.parameters_host
    tested = np.array([e.test_accuracy for e in episodes])
    rent = np.repeat([0.01, 0.5], 4)
    found = np.concatenate([reported for _, reported in one.daemon.recorder.state_dict()["returns"]])
    np.testing.assert_allclose(found, tested - rent * growth, atol=1e-6)
    assert growth[4:].any()


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [nightly(2), 6])
def test_pause_is_in_no_seconds(rig: Callable[..., Rig], epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an episode's middle, and at its end, whose seconds are only the round's."""
    one, days, clock = rig(), 1e7, time.perf_counter
    shift = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + shift)
    mailbox = one.daemon.server.mailbox

    def wait(_timeout: float) -> None:
        nonlocal shift
        shift += days
        mailbox.put(command("resume"))

    monkeypatch.setattr(mailbox, "wait", wait)
    one.play({(1, epoch): [command("pause")]})
    assert shift == days, "it has waited"
    for told in (*one.told(EpochFinished), *one.told(RoundFinished)):
        assert 0.0 < told.seconds < days / 10
        assert sum(told.phases.values()) <= told.seconds + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("may_be_late", [False, True], ids=["at once", "late"])
def test_epoch_is_told_its_own_time(
    rig: Callable[..., Rig], may_be_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one that was reported late had the time that the next one took to be trained."""
    one, days, clock = rig(), 1e7, time.perf_counter
    shift = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + shift)
    one.trainer.reports.may_be_late = may_be_late
    train = one.trainer.population.run_epoch

    def run_epoch(round_: int, epoch: int, **options: Any) -> Any:
        nonlocal shift
        shift += days * (epoch == 3)
        return train(round_, epoch, **options)

    monkeypatch.setattr(one.trainer.population, "run_epoch", run_epoch)
    one.play({})
    took_days = [epoch.phases["train"] >= days for epoch in one.told(EpochFinished)]
    assert took_days == [epoch == 3 for epoch in range(6)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("may_be_late", [False, True], ids=["at once", "late"])
def test_gpu_phases_name_the_epoch_they_measured(rig: Callable[..., Rig], may_be_late: bool) -> None:
    one, device = rig(), Device()
    device.passed = 1_000_000
    one.trainer.reports.may_be_late = may_be_late
    one.daemon.hooks._timer = PhaseTimer(GpuClock(device.event))
    one.play({})
    told = [(epoch.gpu_round, epoch.gpu_epoch) for epoch in one.told(EpochFinished)]
    assert {place: name for place, name in enumerate(told) if name[0]} == {1: (1, 1), 9: (2, 3)}
    assert [bool(epoch.gpu_phases) for epoch in one.told(EpochFinished)] == [
        name[0] is not None for name in told
    ]


def test_parameters_of_large_hosts_are_told_exactly(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, counts came as float32, which has not all whole numbers above 2**24."""
    one, large = rig(*LIVELY), 2**25 + 1
    population, counted = one.trainer.population, []
    population.parameters_host, train = large, population.run_epoch

    def run_epoch(*args: Any, **options: Any) -> Any:
        counted.append(population.parameters().tolist())
        return train(*args, **options)

    monkeypatch.setattr(population, "run_epoch", run_epoch)
    one.play({})
    assert [epoch.parameters for epoch in one.told(EpochFinished)] == counted
    assert [episode.parameters for episode in one.told(EpisodeFinished)] == [*counted[5], *counted[11]]
    assert large in counted[0]
    assert max(counted[5]) > large


@pytest.mark.slow
@pytest.mark.parametrize("until", [4, nightly(6)])
def test_resumed_boot_tells_the_escalations_in_force(rig: Callable[..., Rig], until: int) -> None:
    """Before, they were in force, and whoever follows a boot took them to be over."""
    asked = [command("telemetry.escalate", epochs=9, env=1), command("telemetry.escalate", epochs=20)]
    one = rig("telemetry.escalate_on=off")
    one.play({(1, 3): asked}, until=(1, until))
    one = rig("telemetry.escalate_on=off", resumed=True)
    one.daemon._announce()
    told = list(one.daemon.server.emitter.drain(1000))
    assert isinstance(told[0].event, RunStarted), "at which a terminal forgets those of before"
    levels = [e.event for e in told if isinstance(e.event, TelemetryLevel)]
    passed = until - 3
    assert [(e.level, e.previous, e.env, e.epochs, e.command) for e in levels] == [
        ("DEBUG", "NORMAL", 1, 9 - passed, asked[0].id),
        ("DEBUG", "NORMAL", None, 20 - passed, asked[1].id),
    ]
    one.play({})
    assert [e.command for e in one.told(TelemetryLevel)] == [asked[0].id], "ends in time"


@pytest.mark.slow
@pytest.mark.parametrize("until", [4, nightly(6)])
def test_resumed_round_tells_the_rate_of_its_boot(rig: Callable[..., Rig], until: int) -> None:
    """Before, the epochs of the complete round were divided by the seconds of what was left of it."""
    rig().play({}, until=(1, until))
    one = rig(resumed=True)
    one.play({})
    trained = [told.env_epochs_per_second * told.seconds for told in one.told(RoundFinished)]
    assert trained == pytest.approx([4 * (6 - until), 4 * 6])


def in_update(one: Rig, of_round: int, *commands: Command) -> None:
    """Have commands arrive while the policy learns from this round."""
    finished = one.daemon.hooks.on_round_end

    def end(round: int, *rest: Any) -> None:
        if round == of_round:
            for each in commands:
                one.daemon.server.mailbox.put(each)
        finished(round, *rest)

    one.daemon.hooks.on_round_end = end  # type: ignore[assignment,method-assign]


@pytest.mark.parametrize("mode", [nightly("after_epoch"), "after_round"])
def test_stop_in_an_update_trains_no_further_epoch(rig: Callable[..., Rig], mode: str) -> None:
    """Before, it was looked at when an epoch of the next round had ended; after the round: that one, too."""
    one = rig()
    in_update(one, 1, command("stop", mode=mode))
    one.play({})
    assert (one.trainer.round, one.trainer.epoch) == (1, 0)
    assert len(one.told(EpochFinished)) == 6
    one.daemon.commands.close()
    assert [path.name for path in one.daemon.checkpoints.all()] == ["round-000001.pt"]


@pytest.mark.slow
def test_weight_set_in_an_update_holds_in_the_next_round(rig: Callable[..., Rig]) -> None:
    one, seen = rig(), set[tuple[int, float]]()
    in_update(one, 1, command("param.set", key="reward.stage", value=0.9))
    one.play({}, watch=lambda r: seen.add((r.trainer.round, r.trainer.reward.run.cfg.stage)))
    assert seen == {(1, 0.2), (2, 0.9)}


def test_pause_between_rounds_tells_the_finished_one(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the first epoch of the next round was trained; epoch 0 would be that of a round to begin."""
    one = rig()
    mailbox = one.daemon.server.mailbox
    monkeypatch.setattr(mailbox, "wait", lambda _: mailbox.put(command("resume")))
    in_update(one, 1, command("pause"))
    one.play({})
    assert [done.result for done in one.told(CommandDone)] == [{"round": 1, "epoch": 6}] * 2


@pytest.mark.slow
def test_checkpoint_asked_for_in_the_last_update_is_saved(rig: Callable[..., Rig]) -> None:
    """Before, it was answered that the run had ended."""
    one = rig()
    in_update(one, 2, command("checkpoint", tag="mine"))
    one.play({})
    (done,) = one.told(CommandDone)
    assert Path(done.result["path"]).name == "round-000002-mine.pt"
