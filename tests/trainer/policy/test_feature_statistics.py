"""Statistics of the policy's inputs against numpy, and what they say of inputs that moved."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.policy.feature_statistics import (
    BASE_GROUPS,
    FEATURE_GROUPS,
    SLOT_GROUPS,
    STATISTICS,
    feature_statistics,
)
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS, FeatureColumns, Observation
from esper_overwatch.trainer.policy.running_norm import RunningNorm

T, N, S = 6, 5, 3


def norms() -> tuple[RunningNorm, RunningNorm]:
    return RunningNorm(len(BASE_COLUMNS.measured)), RunningNorm(len(SLOT_COLUMNS.measured))


def observed(seed: int, shift: float = 0.0) -> Observation:
    """Normal features, a fifth of the measured ones absent; accuracies are shifted."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(T, N, len(BASE_COLUMNS.names), generator=g)
    slot = torch.randn(T, N, S, len(SLOT_COLUMNS.names), generator=g)
    for tensor, columns in ((base, BASE_COLUMNS), (slot, SLOT_COLUMNS)):
        part = tensor[..., : len(columns.measured)]
        part[torch.rand(part.shape, generator=g) < 0.2] = torch.nan
    for name in BASE_GROUPS["accuracy"]:
        base[..., BASE_COLUMNS.names.index(name)] += shift
    return Observation(base, slot, torch.zeros(T, N, S, dtype=torch.int64))


def learn(norm: tuple[RunningNorm, RunningNorm], seen: Observation) -> None:
    norm[0].update(seen.base[..., : len(BASE_COLUMNS.measured)])
    norm[1].update(seen.slot[..., : len(SLOT_COLUMNS.measured)])


def by_name(seen: Observation, norm: tuple[RunningNorm, RunningNorm]) -> dict[str, dict[str, float]]:
    rows = feature_statistics(seen, *norm).tolist()
    return {
        group: dict(zip(STATISTICS, row, strict=True))
        for group, row in zip(FEATURE_GROUPS, rows, strict=True)
    }


@pytest.mark.parametrize(("columns", "groups"), [(BASE_COLUMNS, BASE_GROUPS), (SLOT_COLUMNS, SLOT_GROUPS)])
def test_every_feature_is_in_one_group_of_its_kind(
    columns: FeatureColumns, groups: dict[str, tuple[str, ...]]
) -> None:
    named = [name for names in groups.values() for name in names]
    assert sorted(named) == sorted((*columns.measured, *columns.plain))
    for names in groups.values():
        assert len({name in columns.measured for name in names}) == 1
    assert len(set(FEATURE_GROUPS)) == len(BASE_GROUPS) + len(SLOT_GROUPS)


def test_statistics_are_those_of_numpy() -> None:
    norm, seen = norms(), observed(2, shift=4.0)
    learn(norm, observed(1))
    found = by_name(seen, norm)
    for groups, columns, features, running in (
        (BASE_GROUPS, BASE_COLUMNS, seen.base, norm[0]),
        (SLOT_GROUPS, SLOT_COLUMNS, seen.slot, norm[1]),
    ):
        for group, names in groups.items():
            place = [columns.names.index(name) for name in names]
            x = features[..., place].double().numpy().reshape(-1, len(place))
            is_measured = place[0] < len(columns.measured)
            if is_measured:
                x = np.clip((x - running.mean.numpy()[place]) / running.std.numpy()[place], -8, 8)
            known = x[~np.isnan(x)]
            expected = {
                "mean": known.mean(),
                "std": known.std(),
                "outliers": (np.abs(known) > 3).mean(),
                "clipped": (np.abs(known) >= 8).mean() if is_measured else 0.0,
                "missing": np.isnan(x).mean(),
                "drift": np.sqrt((np.nanmean(x, 0) ** 2).mean()) if is_measured else math.nan,
            }
            assert found[group] == pytest.approx(expected, abs=1e-6, nan_ok=True), group


def test_what_moved_shows_in_its_group_alone() -> None:
    norm = norms()
    first = by_name(observed(1), norm)
    assert all(math.isnan(group["drift"]) for group in first.values()), "nothing was seen before"
    learn(norm, observed(1))
    moved = by_name(observed(2, shift=5.0), norm)
    assert moved["accuracy"]["drift"] > 3 > 1 > moved["loss"]["drift"]
    assert moved["accuracy"]["outliers"] > 0.5 > moved["loss"]["outliers"]
    assert 0.1 < moved["contribution"]["missing"] < 0.3
    assert math.isnan(moved["stage"]["drift"])


def test_a_group_without_measurements_has_no_statistics() -> None:
    seen = observed(3)
    for name in SLOT_GROUPS["interaction"]:
        seen.slot[..., SLOT_COLUMNS.names.index(name)] = torch.nan
    nothing = by_name(seen, norms())["interaction"]
    assert nothing["missing"] == 1
    assert math.isnan(nothing["mean"])
