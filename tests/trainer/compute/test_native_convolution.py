"""The kernel of our own: torch's results in float64, and the same bits in any company."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.compute import native_convolution as native
from trainer.compute import stacked_ops as stacked

torch.set_num_threads(1)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel that is installed, or one compiled for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        if native.kernel is None:
            patch.setattr(native, "kernel", build(tmp_path_factory.mktemp("built")))
        if native.absence():
            pytest.skip(native.absence())
        yield


def build(folder: Path) -> object:
    """Compile the module as an installation does."""
    if not shutil.which("c++") and not shutil.which("g++"):
        pytest.skip("no compiler of C++ is installed")
    command = "from setuptools import setup; setup()"
    where = ["--build-lib", str(folder), "--build-temp", str(folder / "temp")]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", command, "-q", "build_ext", *where], cwd=ROOT, check=True
    )
    (path,) = folder.rglob("_native_convolution*.so")
    spec = importlib.util.spec_from_file_location("_native_convolution", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    """The result and the gradients of x and weight, by `native_conv`."""
    x, weight, grad, groups = (t.double() if as_float64 and isinstance(t, Tensor) else t for t in case)
    leaves = [t.detach().requires_grad_() for t in (x, weight)]
    out = stacked.native_conv(*leaves, groups=groups)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To a few roundings of what is summed; float32 against float64."""
    assert found.dtype == torch.float32
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * max(1.0, scale))


@settings(max_examples=60, deadline=None, database=None)
@given(cases())
def test_results_and_gradients_are_those_of_float64(case: Case) -> None:
    assert native.is_taken(case[0], case[1], case[3], 1)
    for found, expected in zip(both(case), both(case, as_float64=True), strict=True):
        assert_close(found, expected)


@settings(max_examples=30, deadline=None, database=None)
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


@settings(max_examples=30, deadline=None, database=None)
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


@pytest.mark.parametrize("kernel", [1, 3])
def test_one_input_for_all_networks_is_convolved_by_each(kernel: int) -> None:
    x, weight = torch.randn(9, 3, 12, 8), torch.randn(4, 8, 3, kernel, kernel)
    out = stacked.native_conv(x, weight.requires_grad_())
    grad = torch.randn_like(out)
    (to_weight,) = torch.autograd.grad(out, [weight], grad)
    each = weight.detach().double().flatten(0, 1).requires_grad_()
    expected = F.conv2d(x.double(), each, padding=kernel // 2)
    assert_close(out.detach(), expected.detach())
    assert_close(to_weight.flatten(0, 1), torch.autograd.grad(expected, [each], grad.double())[0])


def test_bias_and_relu_are_applied_behind_the_sums() -> None:
    x, weight, bias = torch.randn(5, 6, 7, 7), torch.randn(2, 12, 3, 3, 3), torch.randn(2, 12)
    plain = F.conv2d(x.double(), weight.double().flatten(0, 1), bias.double().flatten(), 1, 1, groups=2)
    assert_close(stacked.native_conv(x, weight, bias), plain)
    assert_close(native.convolve(x, weight, bias, relu=True), plain.relu())
    learned = bias.requires_grad_()
    (to_bias,) = torch.autograd.grad(stacked.native_conv(x, weight, learned).sum(), [learned])
    torch.testing.assert_close(to_bias, torch.full((2, 12), 5.0 * 49))


def test_weights_may_lie_in_rows_of_something_longer() -> None:
    rows = torch.randn(3, 500)
    weight = rows[:, 7 : 7 + 8 * 4 * 9].view(3, 8, 4, 3, 3)
    x = torch.randn(4, 12, 8, 8)
    assert torch.equal(stacked.native_conv(x, weight), stacked.native_conv(x, weight.contiguous()))


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
        made = stacked.native_conv(*tensors, groups=groups, stride=stride)
        assert torch.equal(made, stacked.conv(*tensors, groups=groups, stride=stride))
    with torch.autocast("cpu", torch.bfloat16):
        assert stacked.native_conv(x, weight).dtype == torch.bfloat16


QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize(
    "checks", [QUICK_CHECKS, pytest.param(("test_aot_dispatch_dynamic",), marks=pytest.mark.slow)], ids=len
)
@pytest.mark.parametrize("groups", [1, 4])
def test_operators_keep_the_promises_of_torch_library(groups: int, checks: tuple[str, ...]) -> None:
    x = torch.randn(3, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    weight, grad = torch.randn(2, 4, 4 // groups, 3, 3), torch.randn_like(x)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    forward, backward = torch.ops.esper.convolve.default, torch.ops.esper.convolve_backward.default
    torch.library.opcheck(forward, (*leaves, None, groups, False), test_utils=checks)
    torch.library.opcheck(backward, (grad, x, weight, groups, True, True), test_utils=checks)
