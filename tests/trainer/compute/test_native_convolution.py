"""The kernel of our own: torch's results in float64, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper_overwatch.trainer.compute import native_convolution as native
from esper_overwatch.trainer.compute.convolutions import CONVOLUTIONS, GROUPED
from esper_overwatch.trainer.compute.stacked_ops import batch_norm, max_pool
from tests.extensions import build_extension

torch.set_num_threads(1)
NATIVE = CONVOLUTIONS["native"]


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel that is installed, or one compiled for these tests where it is absent or outdated."""
    with pytest.MonkeyPatch.context() as patch:
        if native.kernel is None or "older sources" in native.absence():
            patch.setattr(
                native, "kernel", build_extension("_native_convolution", tmp_path_factory.mktemp("built"))
            )
        if native.absence():
            pytest.skip(native.absence())
        yield


Case = tuple[Tensor, Tensor, Tensor, int]
"""x [B, n*I, H, W], weight [n, O, I/groups, k, k], a gradient of the result, groups."""


@st.composite
def cases(draw: st.DrawFn, min_hosts: int = 1) -> Case:
    n, batch = draw(st.integers(min_hosts, 5)), draw(st.integers(1, 20))
    height, width = draw(st.integers(1, 18)), draw(st.integers(1, 18))
    channels = st.sampled_from([1, 2, 3, 4, 8, 16, 32]) | st.integers(1, 40)
    inputs, outputs, kernel = draw(channels), draw(channels), draw(st.sampled_from([1, 3]))
    groups = draw(st.sampled_from([1, inputs]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    outputs = inputs if groups > 1 else outputs

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x = random(batch, n * inputs, height, width)
    weight = random(n, outputs, inputs // groups, kernel, kernel)
    return x, weight, random(batch, n * outputs, height, width), groups


def both(case: Case, *, as_float64: bool = False) -> list[Tensor]:
    """The result and the gradients of x and weight, natively."""
    x, weight, grad, groups = (t.double() if as_float64 and isinstance(t, Tensor) else t for t in case)
    leaves = [t.detach().requires_grad_() for t in (x, weight)]
    out = NATIVE(*leaves, groups=groups)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To a few roundings of what is summed; float32 against float64."""
    assert found.dtype == torch.float32
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * max(1.0, scale))


@settings(database=None, derandomize=True)
@given(cases())
def test_results_and_gradients_are_those_of_float64(case: Case) -> None:
    assert native.is_taken(case[0], case[1], case[3], 1)
    for found, expected in zip(both(case), both(case, as_float64=True), strict=True):
        assert_close(found, expected)


@settings(database=None, derandomize=True)
@given(cases(min_hosts=2), st.integers(0, 4))
def test_a_network_alone_computes_the_same_bits(case: Case, which: int) -> None:
    x, weight, grad, groups = case
    n = weight.shape[0]
    one = which % n
    mine = [t.unflatten(1, (n, -1))[:, one] for t in (x, grad)]
    together, alone = both(case), both((mine[0], weight[one : one + 1], mine[1], groups))
    for a, b in zip((together[0], together[1]), alone[:2], strict=True):
        assert torch.equal(a.unflatten(1, (n, -1))[:, one], b)
    assert torch.equal(together[2][one], alone[2][0])


@settings(database=None, derandomize=True)
@given(cases())
def test_both_instruction_sets_and_any_thread_give_equal_bits(case: Case) -> None:
    assert native.kernel is not None
    results = []
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        for name in native.kernel.instruction_sets():
            patch.setattr(native, "instruction_set", lambda name=name: name)
            results += [both(case), *threads.map(both, [case, case])]
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize(("width", "inputs", "outputs"), [(16, 3, 8), (48, 8, 5), (32, 1, 24), (16, 5, 12)])
def test_rows_of_whole_vectors_give_the_same_bits(width: int, inputs: int, outputs: int) -> None:
    """Whose pixels AVX-512 takes as lanes; the last block has fewer images than the others."""
    assert native.kernel is not None
    x, weight = torch.randn(40, 2 * inputs, 3, width), torch.randn(2, outputs, inputs, 3, 3)
    bias, grad = torch.randn(2, outputs), torch.randn(40, 2 * outputs, 3, width)
    case = (x, weight, grad, 1)
    for found, expected in zip(both(case), both(case, as_float64=True), strict=True):
        assert_close(found, expected)
    plain = F.conv2d(x.double(), weight.double().flatten(0, 1), bias.double().flatten(), 1, 1, groups=2)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        for name in native.kernel.instruction_sets():
            patch.setattr(native, "instruction_set", lambda name=name: name)
            results.append([*both(case), native.convolve(x, weight, bias, relu=True)])
            assert_close(results[-1][-1], plain.relu())
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("kernel", [1, 3])
def test_one_input_for_all_networks_is_convolved_by_each(kernel: int) -> None:
    x, weight = torch.randn(9, 3, 12, 8), torch.randn(4, 8, 3, kernel, kernel)
    out = NATIVE(x, weight.requires_grad_())
    grad = torch.randn_like(out)
    (to_weight,) = torch.autograd.grad(out, [weight], grad)
    each = weight.detach().double().flatten(0, 1).requires_grad_()
    expected = F.conv2d(x.double(), each, padding=kernel // 2)
    assert_close(out.detach(), expected.detach())
    assert_close(to_weight.flatten(0, 1), torch.autograd.grad(expected, [each], grad.double())[0])


@pytest.mark.parametrize("method", ["__call__", "batch_normed"])
def test_one_input_gets_the_gradients_of_all_networks(method: str) -> None:
    x, weight, norm = torch.randn(9, 3, 12, 8), torch.randn(4, 8, 3, 3, 3), torch.rand(2, 4, 8)
    tensors = [x, weight] if method == "__call__" else [x, weight, *norm]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf, *others = (t.to(dtype) for t in tensors)
        out = getattr(NATIVE, method)(leaf.requires_grad_(), *others)
        results += torch.autograd.grad(out.square().sum(), leaf)
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-3, atol=1e-3)
    leaf = x.clone().requires_grad_()
    with pytest.raises(AssertionError, match="the last network's part"):
        native.convolve(leaf, weight).sum().backward()


def test_bias_and_relu_are_applied_behind_the_sums() -> None:
    x, weight, bias = torch.randn(5, 6, 7, 7), torch.randn(2, 12, 3, 3, 3), torch.randn(2, 12)
    plain = F.conv2d(x.double(), weight.double().flatten(0, 1), bias.double().flatten(), 1, 1, groups=2)
    assert_close(NATIVE(x, weight, bias), plain)
    assert_close(native.convolve(x, weight, bias, relu=True), plain.relu())
    learned = bias.requires_grad_()
    (to_bias,) = torch.autograd.grad(NATIVE(x, weight, learned).sum(), [learned])
    torch.testing.assert_close(to_bias, torch.full((2, 12), 5.0 * 49))


def test_weights_may_lie_in_rows_of_something_longer() -> None:
    rows = torch.randn(3, 500)
    weight = rows[:, 7 : 7 + 8 * 4 * 9].view(3, 8, 4, 3, 3)
    x = torch.randn(4, 12, 8, 8)
    assert torch.equal(NATIVE(x, weight), NATIVE(x, weight.contiguous()))


def test_numbers_of_a_norm_may_lie_apart() -> None:
    x, weight = torch.randn(4, 12, 8, 8), torch.randn(3, 8, 4, 3, 3)
    scale, shift = torch.randn(2, 48)[:, ::2]
    made = NATIVE.batch_normed(x, weight, scale, shift)
    assert torch.equal(made, NATIVE.batch_normed(x, weight, scale.contiguous(), shift.contiguous()))


@pytest.mark.parametrize("size", [(1, 4), (4, 1)])
def test_pool_that_leaves_nothing_is_refused_as_by_torch(size: tuple[int, int]) -> None:
    x, weight, norm = torch.randn(2, 6, *size), torch.randn(2, 4, 3, 3, 3), torch.rand(2, 2, 4)
    assert native.is_taken(x, weight)
    assert not native.is_taken(x, weight, pool=True)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        NATIVE.batch_normed(x, weight, *norm, pool=True)
    with torch.no_grad(), pytest.raises(AssertionError, match="nothing is left"):
        native.convolve(x, weight, pool=True)


def test_what_the_kernel_does_not_compute_torch_does() -> None:
    x, weight = torch.randn(2, 6, 8, 8), torch.randn(2, 4, 3, 3, 3)
    for tensors, groups, stride in (
        ((x.double(), weight.double()), 1, 1),
        ((x, torch.randn(2, 4, 3, 5, 5)), 1, 1),
        ((x, weight), 1, 2),
        ((torch.randn(2, 12, 8, 8), weight), 2, 1),
        ((torch.randn(0, 6, 8, 8), weight), 1, 1),
    ):
        assert not native.is_taken(*tensors, groups, stride)
        made = NATIVE(*tensors, groups=groups, stride=stride)
        assert torch.equal(made, GROUPED(*tensors, groups=groups, stride=stride))
    with torch.autocast("cpu", torch.bfloat16):
        assert NATIVE(x, weight).dtype == torch.bfloat16


@st.composite
def normed_cases(draw: st.DrawFn) -> tuple[bool, list[Tensor], Tensor]:
    """Whether there is a pool in front, tensors with room in their rows, and a gradient of the result."""
    x, weight, grad, _ = draw(cases().filter(lambda case: case[3] == 1 and case[2][:, 0].numel() > 1))
    n, outputs = weight.shape[:2]
    rows = torch.randn(n, 2 * outputs + draw(st.integers(0, 3)))
    pool = draw(st.booleans())
    if pool:
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3) + torch.rand(*x.shape[2:]).repeat(1, 1, 2, 2)
        x = F.pad(x, (0, draw(st.integers(0, 1)), 0, draw(st.integers(0, 1))))
    return pool, [x, weight, rows[:, :outputs], rows[:, outputs : 2 * outputs]], grad


def derived(pool: bool, tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = NATIVE.batch_normed(*leaves, pool=pool)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@settings(database=None, derandomize=True)
@given(normed_cases())
def test_norms_behind_convolutions_are_those_of_float64(case: tuple[bool, list[Tensor], Tensor]) -> None:
    pool, tensors, grad = case
    exact = [t.double() for t in tensors]
    # A ReLU whose input is 0 up to a rounding may be on in one and off in the other.
    x, weight, *norm = exact
    before = batch_norm(GROUPED(max_pool(x) if pool else x, weight), *norm)
    grad = grad.where(before.abs() > 1e-4, 0.0)
    found, expected = derived(pool, tensors, grad), derived(pool, exact, grad.double())
    with torch.no_grad():
        assert torch.equal(NATIVE.batch_normed(*tensors, pool=pool), found[0]), "as without gradients"
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3 * scale)


@settings(database=None, derandomize=True)
@given(normed_cases(), st.integers(0, 4))
def test_a_normed_network_alone_computes_the_same_bits(
    case: tuple[bool, list[Tensor], Tensor], which: int
) -> None:
    pool, tensors, grad = case
    n = tensors[1].shape[0]
    one = which % n

    def alone(t: Tensor) -> Tensor:
        return t.unflatten(1, (n, -1))[:, one] if t.dim() == 4 else t[one : one + 1]

    together, single = derived(pool, tensors, grad), derived(pool, [*map(alone, tensors)], alone(grad))
    for a, b in zip(together, single, strict=True):
        assert torch.equal(alone(a), b)


def test_normed_bits_are_those_of_any_instruction_set_and_thread() -> None:
    assert native.kernel is not None
    sizes = ((3, 8, 16, 9), (8, 16, 32, 4), (4, 6, 3, 7))

    def all_of_them(_: int) -> list[Tensor]:
        out = []
        for batch, inputs, outputs, side in sizes:
            generator = torch.Generator().manual_seed(side)
            shapes = ((batch, 2 * inputs, side, side), (2, outputs, inputs, 3, 3), (2, outputs), (2, outputs))
            tensors = [torch.randn(shape, generator=generator) for shape in shapes]
            grad = torch.randn(batch, 2 * outputs, side, side, generator=generator)
            out += derived(False, tensors, grad)
            out += derived(True, tensors, grad[:, :, : side // 2, : side // 2])
        return out

    results = []
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        for name in native.kernel.instruction_sets():
            patch.setattr(native, "instruction_set", lambda name=name: name)
            results += [all_of_them(0), *threads.map(all_of_them, range(2))]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_pool_takes_the_first_of_equals_and_not_a_number() -> None:
    values = torch.tensor([[1.0, 1.0, 0.0, float("nan")], [1.0, 0.5, 3.0, -1.0]]).expand(3, 20, 2, 4)
    weight = torch.eye(20).reshape(1, 20, 20, 1, 1)
    made = native.convolve(values, weight, pool=True)
    assert torch.equal(made[..., 0], torch.ones(3, 20, 1))
    assert made[..., 1].isnan().all()
    depth = torch.randn(1, 20, 1, 3, 3)
    pooled = max_pool(x := torch.randn(3, 20, 5, 6))
    assert torch.equal(
        native.convolve(x, depth, groups=20, pool=True), native.convolve(pooled, depth, groups=20)
    )
    x = values[..., :2].clone().requires_grad_()
    out = NATIVE.batch_normed(x, weight, torch.ones(1, 20), x[0, :, 0, 0], pool=True)
    (to_x,) = torch.autograd.grad(out, x, torch.ones(3, 20, 1, 1))
    assert to_x.flatten(2)[..., 1:].eq(0).all()


def test_kernel_of_older_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 6, 8, 8), torch.randn(2, 4, 3, 3, 3)
    assert native.is_taken(x, weight)
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    assert "install this package again" in native.absence()
    assert not native.is_taken(x, weight)


def test_averages_of_batches_are_those_of_torch() -> None:
    x, weight, scale, shift = (
        torch.randn(6, 6, 5, 5),
        torch.randn(2, 8, 3, 3, 3),
        torch.rand(2, 8),
        torch.randn(2, 8),
    )
    found, expected = torch.zeros(2, 2, 8), torch.zeros(2, 2, 8, dtype=torch.float64)
    for batches in (1, 2, 3):
        tensors = (x * batches, weight, scale, shift)
        with torch.no_grad():
            out = NATIVE.batch_norm_averaged(*tensors, *found, batches)
            assert_close(out, GROUPED.batch_norm_averaged(*(t.double() for t in tensors), *expected, batches))
    assert_close(found, expected)
