"""Inputs made of images by the kernel of our own: the bits are those of torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.compute import native_convolution as native
from esper_overwatch.trainer.compute import native_images
from esper_overwatch.trainer.data.images import Images
from tests.extensions import build_extension

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel that is installed, or one compiled for these tests where it is absent or older."""
    with pytest.MonkeyPatch.context() as patch:
        if not native_images.is_taken(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), 2, torch.float32):
            built = build_extension("_native_convolution", tmp_path_factory.mktemp("built"))
            patch.setattr(native, "kernel", built)
        if native.absence():
            pytest.skip(native.absence())
        yield


def images(channels: int, side: int, dtype: torch.dtype = torch.float32) -> Images:
    """All levels of a byte in every channel, and a mean and deviation of each of its own."""
    g = torch.Generator().manual_seed(channels)
    count = -(-256 // side**2) + 3
    levels = torch.arange(count * side**2).remainder(256).byte().view(count, 1, side, side)
    pixels = levels.expand(-1, channels, -1, -1).clone()
    pixels[:, 1:] = pixels[:, 1:].roll(7, 0)
    mean, std = (torch.rand(2, channels, generator=g, dtype=torch.float64) * 100 + 1).unbind()
    return Images(pixels, torch.arange(count) % 10, mean, std, dtype)


@given(
    channels=st.integers(1, 5),
    side=st.sampled_from([1, 3, 8, 32]),
    n=st.integers(1, 17),
    batch=st.integers(1, 9),
)
def test_inputs_have_the_bits_of_torch(channels: int, side: int, n: int, batch: int) -> None:
    made = images(channels, side)
    index = torch.randint(0, len(made), (n, batch), generator=torch.Generator().manual_seed(n))
    inputs, labels = made.batch(index)
    assert torch.equal(inputs, made.normalised(made.chosen(index)))
    assert inputs.stride() == made.normalised(made.chosen(index)).stride()
    assert torch.equal(labels, index % 10)


def test_the_kernel_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    real = native_images.scale_images

    def scale_images(pixels: torch.Tensor, index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        calls.append(index)
        return real(pixels, index, table)

    monkeypatch.setattr(native_images, "scale_images", scale_images)
    index = torch.zeros(2, 4, dtype=torch.int64)
    images(3, 8).batch(index)
    assert len(calls) == 1
    images(3, 8, torch.float64).batch(index)
    assert len(calls) == 1, "other dtypes are torch's"
