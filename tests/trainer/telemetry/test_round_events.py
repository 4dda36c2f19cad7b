"""The event of an update has what the algorithm returned, with null where there was nothing."""

from __future__ import annotations

import dataclasses

import numpy as np

from esper_overwatch.protocol.messages.events import PPOUpdate
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.telemetry.round_events import update_event

from .rig import healthy_update


def test_the_event_has_the_fields_of_the_statistics() -> None:
    names = {field.name for field in dataclasses.fields(UpdateStatistics)}
    names = names - {"features"} | {"observation_groups", "limits"}  # an array there; of the checks
    assert names == {field.name for field in dataclasses.fields(PPOUpdate)}


def test_heads_without_a_choice_and_constant_returns_are_null() -> None:
    entropy = np.full(len(HEAD_NAMES), 0.7)
    entropy[2] = np.nan
    event = update_event(dataclasses.replace(healthy_update(), head_entropy=entropy, return_std=0.0))
    assert [name for name, value in event.head_entropy.items() if value is None] == [HEAD_NAMES[2]]
    assert event.explained_variance is None
    assert event.value_nrmse is None
    assert event.return_std == 0.0
    assert list(event.op_fraction) == [op.name for op in Op]
