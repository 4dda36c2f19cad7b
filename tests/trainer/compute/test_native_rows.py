"""Hosts' channels taken of a map, by the kernel and by torch."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.compute.native_rows import take_rows

torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3, 8, 16, 32])
@pytest.mark.parametrize("rows", [[0, 1, 2, 1], [2, 0], [1], [0, 1, 2]])
def test_rows_are_those_channels(rows: list[int], channels: int, dtype: torch.dtype) -> None:
    x = torch.arange(2 * 3 * channels * 5 * 4, dtype=dtype).view(2, 3 * channels, 5, 4)
    found = take_rows(x, 3, torch.tensor(rows))
    expected = torch.cat([x.chunk(3, dim=1)[row] for row in rows], dim=1)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert found.is_contiguous(memory_format=torch.channels_last)
