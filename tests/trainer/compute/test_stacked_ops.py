"""Stacked operations that torch has too: the same numbers, and the same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.trainer.compute.branches import _Squashed, squashed, towards_group_norm
from esper_overwatch.trainer.compute.stacked_ops import max_pool, pooled

torch.set_num_threads(1)


def maps(*shape: int) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (3, 4, 7, 5), (1, 3, 2, 2)])
def test_the_largest_pixels_are_torchs_with_and_without_gradients(shape: tuple[int, ...]) -> None:
    x = maps(*shape)
    with torch.no_grad():
        x[0, 0, 0, 1] = float("nan")
        alone = max_pool(x)
    for pool in (alone, max_pool(x)):
        torch.testing.assert_close(pool, F.max_pool2d(x, 2), rtol=0.0, atol=0.0, equal_nan=True)
        assert pool.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (3, 4, 7, 5), (1, 3, 1, 1)])
def test_a_mean_over_the_map_and_its_gradient(shape: tuple[int, ...]) -> None:
    x = maps(*shape)
    mean, expected = pooled(x, 1)[0], x.mean((2, 3))
    torch.testing.assert_close(mean, expected)
    weights = torch.randn_like(mean)
    torch.testing.assert_close(
        torch.autograd.grad(mean, x, weights), torch.autograd.grad(expected, x, weights)
    )


def test_what_a_gpu_squashes_in_one_operation_is_the_same() -> None:
    x, z = maps(2, 6, 4, 4), torch.randn(3, 2, 2, dtype=torch.float64).requires_grad_()
    found = _Squashed.apply(x.unflatten(1, (3, 2)), z.transpose(0, 1)[..., None, None]).flatten(1, 2)
    torch.testing.assert_close(found, squashed(x, z))
    weights = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, z), weights), torch.autograd.grad(squashed(x, z), (x, z), weights)
    )


@pytest.mark.parametrize("channels", [4, 16])
@pytest.mark.parametrize("constant", [False, True])
def test_a_step_towards_the_norm_is_the_formula(channels: int, constant: bool) -> None:
    n = 3
    x = maps(2, n * channels, 4, 4)
    parameters = [
        torch.randn(n, channels).double(),
        torch.randn(n, channels).double(),
        torch.randn(n).double(),
    ]
    weight, bias, gain = (t.requires_grad_() for t in parameters)
    seen = x.detach() if constant else x
    found = towards_group_norm(seen, weight, bias, gain)
    each = zip(seen.chunk(n, dim=1), weight, bias, gain, strict=True)
    groups = channels // 8 or 1
    # The reference is given NCHW: torch crashes in the backward of a channels_last constant.
    expected = torch.cat([g * (F.group_norm(h.contiguous(), groups, w, b) - h) for h, w, b, g in each], dim=1)
    torch.testing.assert_close(found, expected)
    inputs = [weight, bias, gain] + ([] if constant else [x])
    grads = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, grads), torch.autograd.grad(expected, inputs, grads)
    )


def test_a_step_towards_the_norm_is_the_same_for_constants() -> None:
    """Isolated seeds, whose input has no gradient, may run beside others: bits depended on who did."""
    x, grads = (torch.randn(48, 8, 8, 8).to(memory_format=torch.channels_last) for _ in range(2))
    inputs = [torch.randn(shape).requires_grad_() for shape in ((2, 4), (2, 4), (2,))]
    alone = torch.autograd.grad(towards_group_norm(x, *inputs), inputs, grads)
    seen = x.clone().requires_grad_()
    beside = torch.autograd.grad(towards_group_norm(seen, *inputs), [*inputs, seen], grads)
    assert all(map(torch.equal, alone, beside))
