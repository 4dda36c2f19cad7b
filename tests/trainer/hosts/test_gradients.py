"""Statistics of tensors are right in float64, whatever their size and layout, and take no copy of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from esper_overwatch.trainer.hosts.gradients import (
    MAX_ACTIVATION_PIECE_NUMBERS,
    MAX_PIECE_NUMBERS,
    collected_norms,
    layer_statistics,
    norms_together,
    of_activations,
    pieces,
    row_norms,
    scaled_rows,
    scaled_together,
    summary,
)

torch.set_num_threads(1)
SHAPES = [
    (3, 7),
    (2, MAX_PIECE_NUMBERS),
    (2, MAX_PIECE_NUMBERS + 1),
    (3, 5, 9 * MAX_PIECE_NUMBERS),
    (4, 2 * MAX_PIECE_NUMBERS, 3),
    (2, 40, 30, 3, 3),
]


def random(shape: tuple[int, ...]) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    made[0, 0] = 0.0
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_are_the_whole_and_never_long(shape: tuple[int, ...]) -> None:
    tensor = random(shape)
    parts = list(pieces(tensor))
    assert all(0 < part.shape[1] <= MAX_PIECE_NUMBERS for part in parts)
    together = torch.cat(parts, dim=1).sort(dim=1).values
    assert torch.equal(together, tensor.reshape(shape[0], -1).sort(dim=1).values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norms_in_pieces_are_those_in_float64(shape: tuple[int, ...], scale: float) -> None:
    tensor = random(shape) * scale
    expected = tensor.double().reshape(shape[0], -1).norm(dim=1)
    torch.testing.assert_close(collected_norms([tensor])[0], expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(row_norms([tensor])[0], expected, rtol=1e-12, atol=0.0)


def test_all_rows_together_are_as_one_by_one() -> None:
    tensors = [random((3, 5, 2)), random((3, 7)), random((3, 1, 4, 4))]
    tensors[1][1, 3] = float("nan")
    torch.testing.assert_close(
        norms_together(tensors), row_norms(tensors), rtol=1e-12, atol=0.0, equal_nan=True
    )
    factor = random((3, 3))
    torch.testing.assert_close(
        scaled_together(tensors, factor),
        scaled_rows(tensors, factor),
        rtol=0.0,
        atol=0.0,
        equal_nan=True,
    )


def test_a_summary_is_that_of_the_whole_row() -> None:
    tensor = random((3, 5, 3 * MAX_PIECE_NUMBERS))
    tensor[1, 0, 0] = float("nan")
    tensor[2, 4, -1] = float("-inf")
    found = summary([tensor])
    flat = tensor.double().reshape(3, -1)
    assert torch.equal(found.zero_fraction[0], (flat == 0).double().mean(1))
    assert found.nonfinite[0].tolist() == [0, 1, 1]
    assert found.largest[0, 0] == flat[0].abs().max()
    assert torch.isnan(found.largest[0, 1])
    assert torch.isinf(found.largest[0, 2])
    torch.testing.assert_close(found.rms[0, 0], flat[0].square().mean().sqrt())


def test_summary_keeps_the_order_of_its_tensors() -> None:
    shapes = [
        (3, 7),
        (3, MAX_PIECE_NUMBERS + 1),
        (3, 4, 8),
        (3, 7),
        *[(3, 2, MAX_PIECE_NUMBERS // 4)] * 5,
        (3, 32),
        (3, 1),
    ]
    tensors = [random(shape) * 10.0**i for i, shape in enumerate(shapes)]
    tensors[2][0] = 0.0
    tensors[5][1, 0, 3] = float("nan")
    found = summary(tensors)
    for i, tensor in enumerate(tensors):
        flat = tensor.double().flatten(1)
        torch.testing.assert_close(found.norm[i], flat.norm(dim=1), equal_nan=True)
        torch.testing.assert_close(found.rms[i], flat.square().mean(1).sqrt(), equal_nan=True)
        torch.testing.assert_close(found.largest[i], flat.abs().amax(1), equal_nan=True)
        assert torch.equal(found.zero_fraction[i], (flat == 0).double().mean(1))
        assert torch.equal(found.nonfinite[i], (~flat.isfinite()).double().sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 3, 4), (MAX_ACTIVATION_PIECE_NUMBERS // 8 * 2 + 1, 2, 8), (1, 4, 1)])
def test_activations_are_summed_up_host_by_host(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    out = (random(shape) * 1e30).relu().to(dtype)
    out[-1, -1, -1] = float("nan")
    rms, largest, zero_fraction = of_activations(out)
    by_host = out.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(rms, by_host.square().mean(1).sqrt(), equal_nan=True)
    torch.testing.assert_close(largest, by_host.abs().amax(1), equal_nan=True)
    assert torch.equal(zero_fraction, (by_host == 0).double().mean(1))


def test_statistics_of_layers_do_not_overflow() -> None:
    gradient = torch.full((2, 100), 1e30)
    found = layer_statistics(["w"], [gradient], [gradient], torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(found.grad_norm, torch.full((1, 2), 1e31))
    torch.testing.assert_close(found.grad_rms, torch.full((1, 2), 1e30))


MEASURE = """
import resource, torch
from esper_overwatch.trainer.hosts.gradients import collected_norms, norm_and_health, summary
torch.set_num_threads(1)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def collect(x):
    norms = collected_norms([x])
    norm_and_health(norms, torch.ones_like(norms, dtype=torch.bool))
    summary([x])
collect(torch.ones(2, 3, 100_000))
x = torch.ones(2, 50, {columns})
before = peak()
collect(x)
print(peak() - before)
"""


@pytest.mark.slow
def test_collecting_100_million_parameters_takes_no_megabyte() -> None:
    """The kernel counts the process's memory, so that what torch copies inside a kernel counts too."""
    code = MEASURE.format(columns=1_000_000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1024, f"{done.stdout.strip()} KiB"
