"""Frames become events that say what happened, no more than the level asks for, and nothing made up."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import (
    EpochFinished,
    LayerStatistics,
    RoundFinished,
    SeedGate,
    SeedStage,
)
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op, Stage
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.reward.shapley import ShapleyValues
from esper_overwatch.trainer.telemetry.columns import ACTIVATIONS, LAYER_STATISTICS, shapley_columns
from esper_overwatch.trainer.telemetry.timer import PhaseTimes

from .rig import BLUEPRINTS, EPISODE, SLOTS, Rig, healthy_update


def data(events: list[Any]) -> list[Any]:
    return [event.data for event in events]


def test_an_epoch_says_what_the_signals_said() -> None:
    rig = Rig()
    rig.begin_round()
    rig.decide()
    rig.train()
    (event,) = rig.take("epoch")
    epoch: EpochFinished = event.data
    measurements: Measurements = rig.measurements
    assert (event.ctx.round, event.ctx.epoch, event.ctx.level) == (1, 1, "NORMAL")
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "host_grad_norm", "host_health"):
        assert np.float32(getattr(epoch, name)).tolist() == getattr(measurements, name).tolist(), name
    assert epoch.parameters == [274] * rig.n
    assert epoch.op == [Op.GERMINATE] * rig.n
    assert epoch.action_slot == [0] * rig.n
    assert epoch.stage == [[Stage.GERMINATED, Stage.DORMANT]] * rig.n
    assert epoch.blueprint == [[1, None]] * rig.n
    assert epoch.contribution == [[None, None]] * rig.n
    assert [row[1] for row in epoch.seed_grad_norm] == [None] * rig.n
    assert all(row[0] > 0 for row in epoch.seed_grad_norm)
    assert epoch.reward_components.keys() == {"gain", "rent"}
    assert np.allclose(np.sum(list(epoch.reward_components.values()), axis=0), epoch.reward)
    assert sum(epoch.phases.values()) == pytest.approx(epoch.seconds)


def test_waiting_has_no_slot_and_returns_add_up() -> None:
    rig = Rig(seeded=False)
    for _ in range(3):
        rig.run_epoch()
    epochs = data(rig.take("epoch"))
    assert epochs[-1].action_slot == [None] * rig.n
    assert [e.episode_return[0] for e in epochs] == pytest.approx([0.2, 0.4, 0.6])


def test_unmeasured_is_none_and_measured_nan_stays() -> None:
    rig = Rig()

    def sick(measurements: Measurements) -> None:
        measurements.train_loss[1] = float("nan")
        measurements.host_grad_norm[1] = float("nan")
        measurements.host_grad_norm[2] = measurements.host_health[2] = float("nan")

    rig.run_epoch(sick)
    (epoch,) = data(rig.take("epoch"))
    assert np.isnan(epoch.train_loss[1])
    assert np.isnan(epoch.host_grad_norm[1])
    assert epoch.host_health[1] == 1.0
    assert epoch.host_grad_norm[2] is None
    assert epoch.host_health[2] is None


def test_a_whole_life_is_told_with_who_did_it() -> None:
    rig = Rig(envs=2)
    rig.begin_round()
    plan = {0: rig.action(Op.GERMINATE), 4: rig.action(Op.ADVANCE, alpha_target=2)}
    for epoch in range(12):
        action = plan.get(epoch, rig.action(Op.WAIT))
        if epoch == 11:
            action = rig.action(Op.FOSSILIZE)
        rig.decide(action)
        rig.train()
    stages: list[SeedStage] = data([e for e in rig.take("seed.stage") if e.ctx.env == 1])
    assert [(s.from_stage, s.to_stage, s.by) for s in stages] == [
        ("DORMANT", "GERMINATED", "policy"),
        ("GERMINATED", "TRAINING", "auto"),
        ("TRAINING", "BLENDING", "policy"),
        ("BLENDING", "HOLDING", "auto"),
        ("HOLDING", "FOSSILIZED", "policy"),
    ]
    assert {(s.slot, s.blueprint, s.parameters) for s in stages} == {(SLOTS[0], BLUEPRINTS[1], 80)}
    assert stages[-1].alpha == 1.0
    assert stages[0].contribution is None


def test_a_pruned_slot_is_free_again_and_nameless() -> None:
    rig = Rig(envs=2)
    rig.begin_round()
    for epoch in range(8):
        rig.decide(rig.action({0: Op.GERMINATE, 2: Op.PRUNE}.get(epoch, Op.WAIT)))
        rig.train()
    stages: list[SeedStage] = data([e for e in rig.take("seed.stage") if e.ctx.env == 0])
    assert [(s.to_stage, s.by) for s in stages] == [
        ("GERMINATED", "policy"),
        ("TRAINING", "auto"),
        ("PRUNED", "policy"),
        ("EMBARGOED", "auto"),
        ("RESETTING", "auto"),
        ("DORMANT", "auto"),
    ]
    assert (stages[-1].blueprint, stages[-1].parameters) == (None, 0)
    assert stages[2].blueprint == BLUEPRINTS[1]


def test_gates_are_told_when_their_verdict_changes_and_not_again() -> None:
    rig = Rig(envs=1)
    rig.begin_round()
    for epoch in range(10):
        rig.decide(rig.action(Op.GERMINATE if epoch == 0 else Op.WAIT))
        rig.train()
    gates: list[SeedGate] = data(rig.take("seed.gate"))
    assert [(g.gate, g.slot, g.passed) for g in gates] == [
        ("G0", SLOTS[0], True),
        ("G1", SLOTS[0], True),
        ("G2", SLOTS[0], False),
        ("G2", SLOTS[0], True),
    ]
    assert gates[2].checks["min_epochs"] is False
    assert all(gates[3].checks.values())


def grow(rig: Rig) -> list[Event]:
    """A seed planted, blended in, kept: its events, and those of the epochs."""
    rig.begin_round()
    for epoch in range(12):
        op = Op.GERMINATE if epoch == 0 else Op.ADVANCE if epoch == 4 else Op.WAIT
        holding = bool((rig.table.stage[:, 0] == Stage.HOLDING).all())
        rig.decide(rig.action(Op.FOSSILIZE if holding else op, alpha_target=2, style=1, tempo=0))
        rig.train()
    return rig.take()


def test_every_gate_that_a_seed_passes_is_told() -> None:
    """G3 is asked by the ramp's landing, before its stage changes; G0 by who plants, G1 by the epoch."""
    gates = [(e.data.gate, e.data.passed) for e in grow(Rig(envs=1)) if e.type == "seed.gate"]
    passed = dict.fromkeys(gate for gate, passed in gates if passed)
    assert list(passed) == ["G0", "G1", "G2", "G3", "G5"]
    assert ("G3", False) in gates, "while alpha still moved"


def test_epochs_count_every_evaluation_of_gates() -> None:
    epochs = [e.data for e in grow(Rig(envs=1)) if e.type == "epoch"]
    names = {1 << number: f"G{number}" for number in (0, 1, 2, 3, 5)}

    def count(gates: str) -> dict[str, int]:
        bits = [getattr(epoch, gates)[0][0] for epoch in epochs]
        return {name: sum(bool(b & bit) for b in bits) for bit, name in names.items()}

    asked, passed = count("gates_asked"), count("gates_passed")
    assert asked == {"G0": 1, "G1": 1, "G2": 4, "G3": 3, "G5": 2}
    assert passed == {"G0": 1, "G1": 1, "G2": 2, "G3": 1, "G5": 2}
    assert all(epoch.gates_asked[0][1] == 0 for epoch in epochs), "nobody asked for the other slot"


def test_ids_join_an_action_its_gate_its_effect_and_outcome() -> None:
    events = grow(Rig(envs=2))
    chosen = {
        action: {name: choices[env] for name, choices in e.data.heads.items()}
        for e in events
        if e.type == "epoch"
        for env, action in enumerate(e.data.action)
    }
    mine = [e for e in events if e.ctx.env == 1]
    caused = {e.data.to_stage: e.data for e in mine if e.type == "seed.stage" and e.data.by == "policy"}
    opened = {e.data.gate: e.data for e in mine if e.type == "seed.gate" and e.data.passed}
    assert caused["GERMINATED"].action == opened["G0"].action == "r1e0n1"
    assert caused["BLENDING"].action == "r1e4n1"
    assert caused["FOSSILIZED"].action == opened["G5"].action
    assert opened["G3"].action is None, "nobody chose it"
    assert {e.data.seed for e in mine if e.type in ("seed.stage", "seed.gate")} == {"r1e0n1s0"}
    planted, blended = chosen["r1e0n1"], chosen["r1e4n1"]
    assert (planted["op"], planted["slot"], planted["blueprint"]) == (Op.GERMINATE, 0, 1)
    assert (planted["style"], planted["tempo"], planted["alpha_target"]) == (1, 0, None)
    assert (blended["op"], blended["alpha_target"], blended["style"]) == (Op.ADVANCE, 2, None)
    assert chosen["r1e1n0"] == {name: 0 if name == "op" else None for name in HEAD_NAMES}
    assert all(all(e.data.executed) for e in events if e.type == "epoch")


def test_a_rollback_gives_a_slot_its_older_seed_id() -> None:
    rig = Rig(envs=2)
    before = rig.prune_and_plant_again()
    rig.train()
    rig.take()
    rig.table.load_state_dict(before)
    rig.decide(rig.action(Op.PRUNE), restored=2)
    stages: list[SeedStage] = data(rig.take("seed.stage"))
    assert [(s.from_stage, s.to_stage, s.by, s.seed) for s in stages] == [
        ("GERMINATED", "DORMANT", "governor", "r1e8n0s0"),
        ("GERMINATED", "DORMANT", "governor", "r1e8n1s0"),
        ("DORMANT", "TRAINING", "governor", "r1e0n0s0"),
        ("DORMANT", "TRAINING", "governor", "r1e0n1s0"),
        ("TRAINING", "PRUNED", "policy", "r1e0n0s0"),
        ("TRAINING", "PRUNED", "policy", "r1e0n1s0"),
    ]


LEVEL_TYPES = {
    "OFF": set(),
    "MINIMAL": {"epoch", "ppo.update"},
    "NORMAL": {"epoch", "ppo.update", "drift"},
    "DEBUG": {"epoch", "ppo.update", "drift", "layers"},
}


def layers(rig: Rig, count: int = 3) -> dict[str, torch.Tensor]:
    values = {name: torch.full((count + 1, rig.n), 0.5) for name in LAYER_STATISTICS}
    values["nonfinite"][:] = 2.0
    for name, tensor in values.items():
        tensor[count - 1] = float("nan")  # a layer that no env has
        tensor[slice(count) if name in ACTIVATIONS else count] = float("nan")  # the last is an output
    return values


@pytest.mark.parametrize("level", LEVEL_TYPES)
def test_each_level_publishes_what_it_says(level: Any) -> None:
    rig = Rig(level=level)
    rig.run_epoch(layers=layers(rig))
    rig.update()
    events = rig.take()
    assert {e.type for e in events if e.stream != "life"} == LEVEL_TYPES[level]
    assert {"round.started", "seed.stage"} <= {e.type for e in events}
    assert {e.ctx.level for e in events} == {level}
    for epoch in data([e for e in events if e.type == "epoch"]):
        measured = level in ("NORMAL", "DEBUG")
        assert (epoch.host_grad_norm[0] is not None) == measured
        assert (epoch.seed_health[0][0] is not None) == measured
        assert (epoch.seed_grad_ratio[0][0] is not None) == measured
        if measured:
            assert epoch.seed_grad_ratio[0][1] is None
            ratio = epoch.seed_grad_norm[0][0] / epoch.host_grad_norm[0]
            assert epoch.seed_grad_ratio[0][0] == pytest.approx(ratio)


def test_trouble_is_told_even_when_telemetry_is_off() -> None:
    rig = Rig(level="OFF")
    rig.run_epoch(lambda measurements: measurements.val_loss[3].fill_(float("inf")))
    assert [(e.data.kind, e.ctx.env) for e in rig.take("anomaly")] == [("loss_nonfinite", 3)]


def test_layers_of_exactly_the_epochs_and_envs_asked_for() -> None:
    rig = Rig()
    rig.run_epoch(layers=layers(rig))
    rig.plan.escalate("DEBUG", 2, env=1, reason="test", command="c7")
    for _ in range(4):
        rig.run_epoch(layers=layers(rig))
    events = rig.take()
    told = [e for e in events if e.type == "layers"]
    assert [e.ctx.epoch for e in told] == [2, 3]
    statistics: LayerStatistics = told[0].data
    assert statistics.layer == ["layer0", "layer1", "layer2", "layer3"]
    assert statistics.grad_norm == [[None, 0.5, None, None]] * 2 + [[None] * 4] * 2
    assert statistics.nonfinite == [[None, 2, None, None]] * 2 + [[None] * 4] * 2
    assert statistics.activation_rms == [[None] * 4] * 3 + [[None, 0.5, None, None]]
    assert [e.ctx.level for e in events if e.type == "epoch"] == [
        "NORMAL",
        "DEBUG",
        "DEBUG",
        "NORMAL",
        "NORMAL",
    ]
    changes = [(e.data.level, e.data.previous, e.data.command) for e in events if e.type == "telemetry.level"]
    assert changes == [("DEBUG", "NORMAL", "c7"), ("NORMAL", "DEBUG", "c7")]


def test_an_outcome_that_arrives_late_keeps_its_epochs_level() -> None:
    rig = Rig(level="MINIMAL")
    rig.plan.escalate("NORMAL", 1, reason="test")
    rig.begin_round()
    rig.decide()
    rig.recorder.begin_epoch()
    rig.plan.end_epoch(())  # the epoch is over before its outcome is read
    rig.recorder.record_outcome(rig.outcome(), PhaseTimes(1.0))
    (event,) = rig.take("epoch")
    assert event.ctx.level == "NORMAL"
    assert event.data.host_grad_norm[0] is not None


def test_drift_names_its_sources() -> None:
    rig = Rig(envs=2)
    for _ in range(EPISODE):
        rig.run_epoch()
    rig.update()
    *_, of_hosts, of_policy = data(rig.take("drift"))
    assert of_hosts.source == ["env00", "env01", "env00.r0c0", "env01.r0c0"]
    assert all(d is not None and d < 0.5 for d in of_hosts.norm_drift)
    assert of_policy.source[0] == "policy"
    assert of_policy.source[-1] == "critic"
    assert len(of_policy.source) == 10
    assert of_policy.norm[-1] == healthy_update().critic_grad_norm
    assert of_policy.norm_drift == [None] * 10  # warming up


def test_shapley_values_are_told_and_what_has_none_is_null() -> None:
    rig = Rig(envs=2)
    nan = float("nan")
    pairs = np.array([[[nan]], [[nan]]])
    found = ShapleyValues(np.array([[0.25], [nan]]), np.array([[0.0], [nan]]), pairs, np.array([2, 0]))
    rig.recorder.record_shapley(shapley_columns(found))
    (told,) = data(rig.take("shapley.computed"))
    assert (told.value, told.half_width, told.coalitions) == ([[0.25], [None]], [[0.0], [None]], [2, 0])
    assert told.interaction == [[[None]], [[None]]]
    pairs = np.array([[[nan, 0.5], [0.5, nan]]])
    found = ShapleyValues(np.zeros((1, 2)), np.zeros((1, 2)), pairs, np.array([4]))
    rig.recorder.record_shapley(shapley_columns(found))
    (told,) = data(rig.take("shapley.computed"))
    assert told.interaction == [[[None, 0.5], [0.5, None]]]


def test_a_round_adds_up() -> None:
    rig = Rig(envs=4)
    for _ in range(EPISODE):
        rig.run_epoch()
    rig.recorder.finish_round(PhaseTimes(2.0), np.array([0.1, 0.2, 0.3, 0.6]))
    events = rig.take()
    last = data([e for e in events if e.type == "epoch"])[-1]
    *_, event = events
    finished: RoundFinished = event.data
    assert (event.type, event.ctx.round, event.ctx.epoch) == ("round.finished", 1, EPISODE)
    assert finished.env_epochs_per_second == 4 * EPISODE / 2.0
    assert finished.final_accuracy == last.val_accuracy
    assert finished.final_return == last.episode_return
    assert finished.best_env == int(np.argmax(last.val_accuracy))
    assert finished.accuracy_mean == pytest.approx(np.mean(last.val_accuracy))
    assert finished.return_mean == pytest.approx(0.2 * EPISODE)
    assert finished.test_accuracy_mean == pytest.approx(0.3)
    assert finished.test_accuracy_best == 0.6
    assert (finished.germinated, finished.fossilized, finished.pruned) == (4, 0, 0)
    rig.begin_round()
    rig.decide()
    rig.train()
    rig.recorder.finish_round(PhaseTimes(1.0))
    (second,) = data(rig.take("round.finished"))
    assert (second.germinated, second.test_accuracy_mean) == (4, None)


def test_resume_goes_on_as_if_never_interrupted() -> None:
    def events(cut: int | None) -> list[str]:
        rig = Rig(envs=3)
        for i in range(2 * EPISODE + 5):
            if i == cut:
                buffer = io.BytesIO()
                torch.save(rig.recorder.state_dict(), buffer)
                rig.recorder = rig.new_recorder()
                buffer.seek(0)
                rig.recorder.load_state_dict(torch.load(buffer, weights_only=True))
            sick = i % 7 < 3

            def fault(measurements: Measurements, sick: bool = sick) -> None:
                if sick:
                    measurements.host_grad_norm[1] = 40.0

            rig.run_epoch(fault)
            if rig.epoch == EPISODE:
                rig.update()
                rig.recorder.finish_round(PhaseTimes(1.0))
        told = rig.take()
        for event in told:
            if event.type in ("anomaly", "incident"):
                event.data.since = event.data.suspect_ts = event.data.over = 0
            if event.type == "round.finished":
                event.data.env_epochs_per_second = 0.0  # of this boot's epochs only
        return [repr((e.type, e.ctx, e.data)) for e in told]

    assert events(cut=EPISODE + 9) == events(cut=None)


def test_round_end_after_resume_has_its_own_clock() -> None:
    """A checkpoint of an episode's last epoch: the next event is the update, before any epoch begins."""
    rig = Rig()
    for _ in range(EPISODE):
        rig.run_epoch()
    state = rig.recorder.state_dict()
    rig.recorder._emitter.set_clock(round=0, epoch=0)
    rig.recorder = rig.new_recorder()
    rig.recorder.load_state_dict(state)
    rig.take()
    rig.update()
    rig.recorder.finish_round(PhaseTimes(1.0))
    found = {(event.type, event.ctx.round, event.ctx.epoch) for event in rig.take()}
    assert {("ppo.update", 1, EPISODE), ("round.finished", 1, EPISODE)} <= found
