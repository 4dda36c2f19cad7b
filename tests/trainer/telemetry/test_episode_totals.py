"""What `episode.finished` reports of each env."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from esper_overwatch.protocol.messages.events import EpisodeFinished, RoundFinished, SeedEnded
from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.telemetry.timer import PhaseTimes
from tests.trainer.telemetry.rig import EPISODE, HOST_PARAMETERS, Rig


def finish(rig: Rig, test_accuracy: list[float] | None = None) -> list[EpisodeFinished]:
    rig.recorder.finish_round(PhaseTimes(1.0), None if test_accuracy is None else np.array(test_accuracy))
    return [event.data for event in rig.take("episode.finished")]


def test_components_add_up_to_the_return_of_each_env() -> None:
    rig = Rig(envs=2)
    for _ in range(EPISODE):
        rig.run_epoch()
    rig.recorder.finish_round(PhaseTimes(1.0), np.array([0.25, 0.5]))
    events = rig.take()
    last = [e.data for e in events if e.type == "epoch"][-1]
    told = [e for e in events if e.type == "episode.finished"]
    assert [(e.ctx.env, e.ctx.round, e.ctx.epoch) for e in told] == [(0, 1, EPISODE), (1, 1, EPISODE)]
    assert events[-1].type == "round.finished"
    means = events[-1].data.reward_components
    assert means == pytest.approx({"gain": 0.25 * EPISODE, "rent": -0.05 * EPISODE})
    assert sum(means.values()) == pytest.approx(events[-1].data.return_mean)
    for env, episode in enumerate(e.data for e in told):
        assert episode.reward_components == pytest.approx({"gain": 0.25 * EPISODE, "rent": -0.05 * EPISODE})
        assert episode.total_return == pytest.approx(sum(episode.reward_components.values()))
        assert episode.total_return == last.episode_return[env]
        assert episode.accuracy == last.val_accuracy[env]
        assert episode.added_parameters == 274 - HOST_PARAMETERS
        assert episode.seeds == {"TRAINING": 1}
        assert episode.test_accuracy == (0.25, 0.5)[env]
    rig.begin_round()
    rig.decide()
    rig.train()
    second = finish(rig)
    assert [e.reward_components["gain"] for e in second] == [0.25, 0.25]
    assert second[0].test_accuracy is None


_OF_END = ("seed.ended", "episode.finished", "round.finished")


def roll_back(rig: Rig) -> None:
    """One seed is pruned, then a second planted; a rollback undoes the second and revives the first."""
    before = rig.prune_and_plant_again()
    rig.train(ill=[True] * rig.n)
    rig.table.load_state_dict(before)
    rig.decide(rig.action(Op.WAIT), restored=2)
    rig.train()


def test_a_rollback_is_counted_and_undoes_a_seed() -> None:
    rig = Rig(envs=2)
    roll_back(rig)
    rig.recorder.finish_round(PhaseTimes(1.0))
    *told, round_finished = [event for event in rig.take() if event.type in _OF_END]
    assert [(e.type, e.ctx.env) for e in told] == [
        *[("seed.ended", env) for env in (0, 0, 1, 1)],
        *[("episode.finished", env) for env in (0, 1)],
    ]
    ends: list[SeedEnded] = [event.data for event in told[:2]]
    assert [(e.seed, e.blueprint, e.parameters, e.born, e.ended, e.how) for e in ends] == [
        ("r1e0n0s0", "conv_light", 80, 0, 10, "TRAINING"),
        ("r1e8n0s0", "conv_light", 80, 8, 9, "DORMANT"),
    ]
    for episode in (event.data for event in told[4:]):
        assert (episode.rollbacks, episode.seeds) == (1, {"TRAINING": 1, "DORMANT": 1})
    summary: RoundFinished = round_finished.data
    assert (summary.germinated, summary.fossilized, summary.pruned) == (4, 0, 0)
    rig.begin_round()
    rig.decide()
    rig.train()
    assert [(e.rollbacks, e.seeds) for e in finish(rig)] == [(0, {"GERMINATED": 1})] * 2


def test_an_end_has_the_newest_worth_and_failed_gates() -> None:
    rig = Rig(envs=1)
    rig.begin_round()
    rig.decide(rig.action(Op.GERMINATE, slot=0))
    rig.train()
    for op in (Op.WAIT, Op.WAIT, Op.WAIT, Op.ADVANCE, Op.WAIT):
        rig.decide(rig.action(op, slot=0, alpha_target=2))
        rig.train()
    last = rig.take("epoch")[-1].data.contribution[0][0]
    rig.decide(rig.action(Op.GERMINATE, slot=1))
    rig.recorder.finish_round(PhaseTimes(1.0))
    kept, new = [event.data for event in rig.take("seed.ended")]
    assert (kept.how, kept.contribution) == ("BLENDING", last)
    assert {*kept.gates_failed} == {"G3"}
    assert (new.how, new.contribution, new.gates_failed) == ("GERMINATED", None, {})


def test_resumed_recorder_knows_the_episodes_beginning() -> None:
    rig = Rig(envs=2)
    roll_back(rig)
    state = copy.deepcopy(rig.recorder.state_dict())
    expected = finish(rig)
    rig.recorder = rig.new_recorder()
    rig.recorder.load_state_dict(state)
    assert finish(rig) == expected


def test_checkpoint_of_an_older_version_keeps_counts_of_seeds() -> None:
    rig = Rig(envs=1)
    rig.begin_round()
    rig.decide(rig.action(Op.GERMINATE))
    rig.train()
    state = rig.recorder.state_dict()
    del state["seeds"]["seeds"]
    state["seeds"] |= {"births": [[0, 0, 0], [0, 1]], "outcomes": [[0, 0, "GERMINATED"], [0, 1]]}
    rig.recorder = rig.new_recorder()
    rig.recorder.load_state_dict(state)
    rig.decide(rig.action(Op.GERMINATE, slot=1))
    assert [episode.seeds for episode in finish(rig)] == [{"TRAINING": 1, "GERMINATED": 1}]
