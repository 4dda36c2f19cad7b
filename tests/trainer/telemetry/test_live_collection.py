"""What is collected of a run that trains; what is trained does not depend on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper_overwatch.protocol.messages.events import (
    Anomaly,
    Drift,
    EpochFinished,
    LayerStatistics,
    ProfilerFinished,
    RoundFinished,
    TelemetryLevel,
)
from tests.trainer.control.test_commands import Rig, command, leaves

torch.set_num_threads(1)
EPISODE, ROUNDS = 6, 2


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    runs.close()


class Runs:
    """Makes daemons and trains their two rounds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Rig] = []

    def __call__(
        self,
        *sets: str,
        script: dict[tuple[int, int], list[object]] | None = None,
        may_be_late: bool = False,
    ) -> Rig:
        rig = Rig(self._folder / f"run{len(self._made)}", *sets)
        self._made.append(rig)
        rig.trainer.reports.may_be_late = may_be_late
        rig.play(script or {})  # type: ignore[arg-type]
        return rig

    def close(self) -> None:
        for rig in self._made:
            rig.close()


def epochs_with(rig: Rig, kind: type) -> list[int]:
    """Epochs of the run, from 0, of which such an event was told."""
    found, epoch = [], 0
    for event, _ in rig.events:
        epoch += isinstance(event, EpochFinished)
        if isinstance(event, kind):
            found.append(epoch - 1)
    return found


@pytest.mark.slow
def test_what_is_collected_changes_nothing_that_is_trained(run: Runs) -> None:
    off = leaves(run("telemetry.level=OFF").trainer.state_dict())
    for sets in (
        ("telemetry.level=DEBUG",),
        ("telemetry.level=DEBUG", "telemetry.stride=3"),
        ("telemetry.escalate_on=warning", "telemetry.debug_every=1"),
    ):
        found = leaves(run(*sets).trainer.state_dict())
        assert found.keys() == off.keys()
        for name, value in off.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value.nan_to_num(7e7), found[name].nan_to_num(7e7)), name
            else:
                assert value == found[name], name


@pytest.mark.nightly
def test_layers_come_in_the_epochs_that_the_configuration_names(run: Runs) -> None:
    rig = run("telemetry.debug_every=1", "telemetry.debug_epochs=2", "telemetry.escalate_on=off")
    assert epochs_with(rig, LayerStatistics) == [0, 1, 6, 7]
    told = [e for e in rig.told(TelemetryLevel) if e.epochs]
    assert [e.reason for e in told] == ["telemetry.debug_every"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("may_be_late", [False, True], ids=["at once", "late"])
def test_a_stride_thins_out_layers_and_drift_at_level_debug(run: Runs, may_be_late: bool) -> None:
    rig = run("telemetry.level=DEBUG", "telemetry.stride=4", may_be_late=may_be_late)
    assert epochs_with(rig, LayerStatistics) == [0, 4, 8]
    drift = [e for e in rig.told(Drift) if e.source != ["policy"] and "env00" in e.source]
    assert len(drift) == 3
    assert len(rig.told(EpochFinished)) == EPISODE * ROUNDS


@pytest.mark.slow
def test_an_escalation_asked_for_is_collected_whatever_the_stride(run: Runs) -> None:
    ask = command("telemetry.escalate", level="DEBUG", epochs=3, env=1)
    rig = run("telemetry.stride=4", "telemetry.escalate_on=off", script={(1, 2): [ask]})
    assert epochs_with(rig, LayerStatistics) == [2, 3, 4]
    for event in rig.told(LayerStatistics):
        assert [value is not None for value in event.grad_norm[0]] == [False, True, False, False]


@pytest.mark.parametrize("may_be_late", [False, True], ids=["at once", "late"])
def test_anomaly_escalates_its_env_from_next_epoch(
    run: Runs, may_be_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is told late the next epoch is under way: before, the escalation lost its first epoch."""
    from esper_overwatch.trainer.hosts.host_group import HostGroup

    trained = HostGroup.train

    def ill(group: HostGroup, round_: int, epoch: int, layers: torch.Tensor | None = None) -> object:
        found = trained(group, round_, epoch, layers)
        if (round_, epoch) == (1, 1):
            found.loss[2] = float("nan")
        return found

    monkeypatch.setattr(HostGroup, "train", ill)
    rig = run(
        "envs.group_size=4",
        "telemetry.escalate_on=warning",
        "telemetry.escalate_epochs=2",
        "telemetry.escalate_share=0.4",
        may_be_late=may_be_late,
    )
    (raised,) = [e for e, env in rig.events if isinstance(e, Anomaly) and e.active and env == 2][:1]
    told = [e for e in rig.told(TelemetryLevel) if e.epochs and e.env == 2]
    assert [(e.level, e.epochs) for e in told][:1] == [("DEBUG", 2)]
    assert told[0].reason == f"{raised.kind} of env02"
    assert epochs_with(rig, LayerStatistics)[:2] == ([3, 4] if may_be_late else [2, 3])
    begun, ended = epochs_with(rig, TelemetryLevel)[:2]
    assert (begun, ended) == ((2, 4) if may_be_late else (1, 3))


def test_phases_sum_to_epochs_and_epochs_to_round(run: Runs) -> None:
    rig = run()
    for event in rig.told(EpochFinished):
        assert sum(event.phases.values()) == pytest.approx(event.seconds, rel=1e-6)
        assert event.phases.keys() >= {"train", "validate", "reward", "telemetry"}
        assert event.cpu_phases.keys() == event.phases.keys()
        assert all(seconds >= 0.0 for seconds in event.cpu_phases.values())
    for number, summary in enumerate(rig.told(RoundFinished)):
        epochs = rig.told(EpochFinished)[number * EPISODE : (number + 1) * EPISODE]
        whole = sum(e.seconds for e in epochs) + sum(summary.phases.values())
        assert whole == pytest.approx(summary.seconds, rel=0.05)
        assert {"update", "test", "shapley"} <= summary.phases.keys()
        assert summary.device_syncs is summary.allocator_retries is None


@pytest.mark.nightly
def test_compiled_step_is_one_graph_also_at_level_debug(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole by torch.compile, without the minutes of the C++ compiler."""
    torch._dynamo.reset()
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, mode, **options: compile_(f, backend="eager", **options))
    rig = run(
        "telemetry.level=DEBUG",
        "telemetry.stride=1",
        "compile.mode=default",
        "envs.plan=masked",
        "envs.group_size=4",
        "seeds.blueprints=norm,conv_light",
        "ppo.epochs=2",
    )
    programs = rig.trainer.compiler.programs
    assert {name: p.reason for name, p in programs.items() if p.reason} == {}
    assert all(p.calls > 0 for p in programs.values())
    first, second = rig.told(RoundFinished)
    assert first.graph_breaks == second.graph_breaks == 0
    assert second.recompiles == 0
    assert len(epochs_with(rig, LayerStatistics)) == EPISODE * ROUNDS


@pytest.mark.slow
def test_configured_rounds_are_profiled_with_their_update(run: Runs) -> None:
    rig = run("profiler.rounds=2", "profiler.epochs=1", "ppo.epochs=1")
    (finished,) = rig.told(ProfilerFinished)
    assert (finished.epochs, finished.error) == (1, None)
    assert Path(finished.path).name.startswith("round-000002-epoch-00005.")
    names = {e["name"] for e in json.loads(Path(finished.path).read_bytes())["traceEvents"]}
    assert {"train", "update", "aten::_fused_adam_"} <= names
    assert rig.told(RoundFinished)[1].phases["profiler"] > 0.0, "writing it is nobody else's time"
