"""Choices of the configuration are those that the code has, by the same names."""

from __future__ import annotations

from itertools import chain
from typing import get_args

from esper_overwatch.trainer.compute.convolutions import CONVOLUTIONS
from esper_overwatch.trainer.config.load import OPTIONS
from esper_overwatch.trainer.hosts.precision import DTYPES
from esper_overwatch.trainer.hosts.task_defaults import ARCHITECTURES
from esper_overwatch.trainer.policy.actor import CONSTANT, RULES
from esper_overwatch.trainer.reward.modes import MODES


def choices(key: str) -> set[str]:
    annotated = OPTIONS[key].type
    return set(get_args(get_args(annotated)[0]))


def test_choices_are_those_of_the_tables_that_implement_them() -> None:
    assert choices("reward.mode") == set(MODES)
    assert choices("policy.kind") == {"ppo", CONSTANT, *RULES}
    assert choices("envs.convolution") == {"auto", *CONVOLUTIONS}
    assert choices("amp.dtype") == {"auto", *DTYPES}
    assert choices("host.family") == {"auto", *chain.from_iterable(ARCHITECTURES.values())}


def test_descriptions_stand_alone() -> None:
    for key, option in OPTIONS.items():
        assert option.description[0].isupper(), key
        assert not option.description.startswith(("It ", "They ", "Of ")), key
