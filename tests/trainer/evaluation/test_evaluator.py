"""Evaluation while a run trains: what is played when, what it changes, what a resumed run goes on from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.compute.process_group import ProcessGroup, RanksError
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.episode_table import lead_over
from esper_overwatch.trainer.loop import Trainer
from tests.trainer.compute.test_process_group import Recording

from .test_episodes import CPU, configuration

torch.set_num_threads(1)
EVALUATED = ("evaluation.rounds=2", "evaluation.hosts=2", "evaluation.rivals=no_growth,fixed")


class Rounds(Recording):
    """A `Hooks` that ends after some rounds; a fixed rule has no updates."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    def wants_round(self, finished: int) -> bool:
        return finished < self.rounds

    def on_round_end(self, round: int, update: Any, frame: Any) -> None: ...


def run(cfg: Config, rounds: int, state: dict[str, Any] | None = None) -> tuple[Trainer, Rounds]:
    trainer, seen = Trainer(cfg, load("digits"), CPU), Rounds(rounds)
    if state is not None:
        trainer.load_state_dict(state)
    trainer.run(seen)
    return trainer, seen


def test_rivals_are_played_once_and_the_policy_again() -> None:
    cfg = configuration(*EVALUATED, "evaluation.constant=norm,none,none")
    _, seen = run(cfg, 4)
    assert [(e.policy, e.is_rival) for e in seen.evaluations] == [
        ("no_growth", True),
        ("fixed", True),
        ("ppo", False),
        ("constant", True),
        ("ppo", False),
    ]
    no_growth, fixed, first, constant, second = seen.evaluations
    assert set(first.leads) == {"no_growth", "fixed"}
    assert second.leads == {
        name: lead_over(second.table, rival.table)
        for name, rival in (("no_growth", no_growth), ("fixed", fixed), ("constant", constant))
    }
    assert no_growth.table.task == second.table.task
    assert bool((constant.table.added_parameters > 0).all())


@pytest.mark.slow
def test_evaluation_changes_nothing_that_is_trained() -> None:
    without, with_ = run(configuration(), 2)[1], run(configuration(*EVALUATED), 2)[1]
    assert with_.evaluations
    for one, other in zip(without.frames, with_.frames, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.slow
def test_evaluation_says_which_round_is_best() -> None:
    cfg = configuration("evaluation.rounds=1", "evaluation.hosts=2", "evaluation.rivals=")
    trainer, seen = run(cfg, 3)
    returns = [float(e.table.episode_return.mean()) for e in seen.evaluations]
    assert seen.best == [value > max([-9.0, *returns[:i]]) for i, value in enumerate(returns)]
    _, later = run(cfg, 4, trainer.state_dict())
    (fourth,) = later.evaluations
    assert later.best == [float(fourth.table.episode_return.mean()) > max(returns)]


@pytest.mark.nightly
def test_rule_that_is_trained_on_is_played_once() -> None:
    cfg = configuration(*EVALUATED, "policy.kind=fixed")
    _, seen = run(cfg, 4)
    assert [(e.policy, e.is_rival) for e in seen.evaluations] == [("no_growth", True), ("fixed", False)]


@pytest.mark.slow
def test_resumed_run_evaluates_as_if_it_had_not_stopped() -> None:
    cfg = configuration(*EVALUATED)
    _, whole = run(cfg, 4)
    half, before = run(cfg, 2)
    _, after = run(cfg, 4, half.state_dict())
    told = [(e.policy, e.table.to_builtins(), e.leads) for e in whole.evaluations]
    assert [
        (e.policy, e.table.to_builtins(), e.leads) for e in (*before.evaluations, *after.evaluations)
    ] == told
    assert whole.best == before.best + after.best


@pytest.mark.nightly
def test_other_hosts_are_played_anew_after_a_resume() -> None:
    half, _ = run(configuration(*EVALUATED), 2)
    _, after = run(configuration(*EVALUATED, "evaluation.seed=3"), 3, half.state_dict())
    assert [e.policy for e in after.evaluations] == ["no_growth"]


def test_constant_rival_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="each of the 3 slots"):
        run(configuration(*EVALUATED, "evaluation.constant=norm"), 1)


@pytest.mark.slow
def test_lead_is_taken_host_by_host() -> None:
    _, seen = run(configuration(*EVALUATED), 2)
    mine, rival = seen.evaluations[2].table, seen.evaluations[0].table
    differences = [a - b for a, b in zip(mine.episode_return, rival.episode_return, strict=True)]
    lead = lead_over(mine, rival)
    mean = sum(differences) / 2
    error = (sum((d - mean) ** 2 for d in differences) / 2) ** 0.5
    assert lead == pytest.approx((mean, mean - 1.96 * error, mean + 1.96 * error))


def test_hosts_that_ranks_cannot_share_are_refused() -> None:
    cfg = configuration("evaluation.rounds=1", "evaluation.hosts=3")
    with pytest.raises(RanksError, match=r"evaluation\.hosts = 3: 2 ranks need a multiple of 2"):
        ProcessGroup(0, 2).check_split(cfg)
