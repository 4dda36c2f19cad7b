"""What a comparison tells of policies: whose means, and which differences."""

from __future__ import annotations

import numpy as np
import pytest

from esper_overwatch.trainer.compare.policy_words import Word
from esper_overwatch.trainer.compare.results import PolicyResult, summarise
from esper_overwatch.trainer.episode_table import EpisodeTable

TASKS = ("digits", "digits", "texture", "texture")


def result(word: Word, returns: tuple[float, ...]) -> PolicyResult:
    n = len(returns)
    table = EpisodeTable(
        task=TASKS,
        instance=np.zeros(n, np.int64),
        val_accuracy=np.zeros(n),
        test_accuracy=np.zeros(n),
        added_parameters=np.zeros(n),
        episode_return=np.array(returns),
        components={},
        fossilized=np.zeros(n, np.int64),
        ops=np.zeros((n, 6), np.int64),
        blueprint=np.full((n, 3), -1),
        style=np.full((n, 3), -1),
    )
    return PolicyResult(word, [table])


@pytest.mark.parametrize(
    ("unseen", "averaged", "mean"),
    [
        ((), ["digits", "texture"], 0.5),
        (("texture",), ["digits"], 1.0),
        (("digits", "texture"), ["digits", "texture"], 0.5),
    ],
)
def test_means_leave_out_tasks_never_trained_on(
    unseen: tuple[str, ...], averaged: list[str], mean: float
) -> None:
    summary = summarise([result(Word("ppo"), (1.0, 1.0, 0.0, 0.0))], unseen)
    (policy,) = summary["policies"]
    assert summary["averaged"] == averaged
    assert summary["hosts"] == 2 * len(averaged)
    assert policy["figures"]["return"]["mean"] == mean
    assert [policy["by_task"][task]["return"] for task in ("digits", "texture")] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["ppo", "a.policy", "a+b.policy"])
def test_differences_are_told_whatever_a_file_is_called(name: str) -> None:
    words = [Word(name), Word("no_growth"), Word(name, "shuffled")]
    found = summarise([result(word, (1.0, 1.0, 0.0, 0.0)) for word in words])["differences"]["trained"]
    assert [(one["first"], one["second"]) for one in found] == [
        (name, "no_growth"),
        (f"{name}+shuffled", name),
    ]
