"""What the controls change of an observation, and what they leave."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.compare.observations import shuffle_measurements
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS, Observation


def observation(envs: int = 4) -> Observation:
    generator = torch.Generator().manual_seed(0)
    return Observation(
        base=torch.rand(envs, len(BASE_COLUMNS.names), generator=generator),
        slot=torch.rand(envs, 3, len(SLOT_COLUMNS.names), generator=generator),
        blueprint=torch.tensor([[0, 1, -1]] * envs),
    )


def changed(before: torch.Tensor, after: torch.Tensor, names: tuple[str, ...]) -> set[str]:
    return {name for i, name in enumerate(names) if not torch.equal(before[..., i], after[..., i])}


def test_shuffling_moves_what_was_measured_only() -> None:
    seen, order = observation(), torch.tensor([1, 2, 3, 0])
    other = shuffle_measurements(seen, order)
    for columns, mine, theirs in (
        (BASE_COLUMNS, seen.base, other.base),
        (SLOT_COLUMNS, seen.slot, other.slot),
    ):
        measured = {*columns.measured, *(f"no_{name}" for name in columns.measured)}
        assert changed(mine, theirs, columns.names) == measured
        for i, name in enumerate(columns.names):
            assert torch.equal(theirs[..., i], (mine[order] if name in measured else mine)[..., i])
    assert torch.equal(seen.blueprint, other.blueprint)
