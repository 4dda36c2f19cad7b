"""Seeds take and give back rows of a map by the kernel of our own: the bits are those of torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper_overwatch.trainer.compute import native_convolution as native
from esper_overwatch.trainer.compute import native_rows
from esper_overwatch.trainer.hosts.slot_plan import SlotColumns, gather
from esper_overwatch.trainer.seeds.blend import gate, gather_rows, graft
from tests.extensions import build_extension

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel that is installed, or one compiled for these tests where it is absent or older."""
    with pytest.MonkeyPatch.context() as patch:
        if not native_rows.is_taken(torch.zeros(1, 1, 1, 1)):
            built = build_extension("_native_convolution", tmp_path_factory.mktemp("built"))
            patch.setattr(native, "kernel", built)
        if native.absence():
            pytest.skip(native.absence())
        yield


def slot_columns(n: int, numbers: np.random.Generator) -> SlotColumns:
    """Seeds of two kinds in all states and styles, at least one, some of them silent."""
    state = numbers.integers(0, 3, n)
    state[0] = numbers.integers(1, 3)
    alpha = torch.from_numpy(numbers.random(n)).float() * torch.from_numpy(numbers.integers(0, 2, n))
    return SlotColumns(
        blueprint=numbers.integers(0, 2, n),
        style=numbers.integers(0, 3, n),
        isolated=state == 1,
        blended=state == 2,
        alpha=alpha * torch.from_numpy(state == 2),
    )


def results(
    h: Tensor, weight: Tensor, columns: SlotColumns, *, causal: bool = False, natively: bool
) -> list[Tensor]:
    """A slot's output without and with gradients, and those of its map and its seeds' and gates' weights.

    Args:
        weight: [n, 2*C + 1], the seeds', the gates' and their biases.
    """
    n = len(columns.blueprint)
    run = columns.isolated | columns.blended
    plans = gather(columns, np.arange(n), run, frozenset({1}), apart=False)
    segments = [plan.segment for plan in plans]
    leaves = [t.clone().requires_grad_() for t in (h, weight)]
    channels = h.shape[1] // n

    def forward(h: Tensor, weight: Tensor) -> Tensor:
        host, seen = gather_rows(h, n, segments, natively=natively)
        made, strength = [], []
        for x, plan in zip(seen, plans, strict=True):
            assert plan.owners is not None
            seed, weights, bias = weight.index_select(0, plan.owners).split([channels, channels, 1], dim=1)
            made.append(torch.relu(x * seed.flatten()[:, None, None]))
            alpha = plan.alpha.view(1, 1, 1, -1)
            if plan.gated is not None:
                opening = gate(x, {"weight": weights, "bias": bias.squeeze(1)}, causal=causal)
                alpha = torch.where(plan.gated & (alpha != 0.0), alpha * opening, alpha)
            strength.append(alpha)
        return graft(host, n, segments, seen, made, strength, natively=natively)

    out = forward(leaves[0] * 1.0, leaves[1])
    with torch.no_grad():
        silent = forward(h.clone(), weight)
    gradients = torch.autograd.grad((out * out).sum(), leaves, allow_unused=True)
    return [silent, out.detach(), *(g for g in gradients if g is not None)]


@given(
    n=st.integers(1, 6),
    batch=st.integers(1, 4),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.sampled_from([1, 3, 8, 16, 32]),
    causal=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_rows_are_moved_and_blended_as_by_torch(
    n: int, batch: int, size: tuple[int, int], channels: int, causal: bool, seed: int
) -> None:
    columns = slot_columns(n, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(batch, n * channels, *size, generator=generator)
    h = h.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(n, 2 * channels + 1, generator=generator)
    by_torch = results(h, weight, columns, causal=causal, natively=False)
    by_kernel = results(h, weight, columns, causal=causal, natively=True)
    assert len(by_torch) == len(by_kernel)
    for expected, found in zip(by_torch, by_kernel, strict=True):
        assert torch.equal(found, expected)


def test_a_silent_seed_that_is_not_finite_changes_no_bit() -> None:
    columns = SlotColumns(
        blueprint=np.zeros(3, dtype=np.int64),
        style=np.array([0, 1, 2]),
        isolated=np.zeros(3, dtype=np.bool_),
        blended=np.ones(3, dtype=np.bool_),
        alpha=torch.zeros(3),
    )
    h = torch.randn(2, 24, 3, 3).contiguous(memory_format=torch.channels_last)
    weight = torch.full((3, 17), float("nan"))
    silent, out, *gradients = results(h, weight, columns, natively=True)
    assert torch.equal(silent, h)
    assert torch.equal(out, h)
    for found, expected in zip(gradients, results(h, weight, columns, natively=False)[2:], strict=True):
        assert torch.allclose(found, expected, rtol=0.0, atol=0.0, equal_nan=True)


def test_maps_in_another_memory_order_are_left_to_torch() -> None:
    """The kernel reads addresses: it would take other pixels for these rows."""
    h = torch.randn(2, 16, 3, 3)
    assert native_rows.is_taken(h.contiguous(memory_format=torch.channels_last))
    assert not native_rows.is_taken(h)
