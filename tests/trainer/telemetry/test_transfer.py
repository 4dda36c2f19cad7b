"""What is packed on the device is what is unpacked on the host, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from esper_overwatch.trainer.telemetry.transfer import Transfer

torch.set_num_threads(1)
DTYPES = [np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)


@given(st.lists(arrays, min_size=1, max_size=8))
def test_round_trip(columns: list[Any]) -> None:
    tensors = {f"c{i}": torch.from_numpy(np.array(a)) for i, a in enumerate(columns)}
    transfer = Transfer()
    frame = transfer(tensors)
    assert transfer.count == 1
    assert transfer.bytes == sum(a.nbytes for a in columns)
    for name, expected in zip(tensors, columns, strict=True):
        assert frame[name].dtype == expected.dtype
        assert frame[name].shape == expected.shape
        assert frame[name].tobytes() == expected.tobytes()  # NaN payloads and -0.0 included
        assert frame[name].flags.aligned


def test_strided_columns_and_no_sharing() -> None:
    actions = torch.arange(12).reshape(4, 3)
    alpha = torch.rand(4, 2)
    frame = Transfer()({"op": actions[:, 0], "alpha": alpha.T})
    expected = alpha.T.numpy().copy()
    actions.zero_()
    alpha.zero_()
    assert frame["op"].tolist() == [0, 3, 6, 9]
    assert np.array_equal(frame["alpha"], expected)


def test_a_single_env() -> None:
    assert Transfer()({"op": torch.tensor([[3, 1, 4]])[:, 0]})["op"].tolist() == [3]


def test_gradients_are_left_behind() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert Transfer()({"loss": weight * 2})["loss"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_one_synchronising_copy_per_transfer() -> None:
    columns = {
        "loss": torch.rand(64, device="cuda"),
        "stage": torch.randint(0, 9, (64, 3), device="cuda"),
        "passed": torch.rand(64, 3, device="cuda") > 0.5,
    }
    expected = {name: tensor.cpu().numpy() for name, tensor in columns.items()}
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as recording:
        frame = Transfer()(columns)
    copies = [e for e in recording.events() if "Memcpy DtoH" in e.name]
    assert len(copies) == 1
    for name, values in expected.items():
        assert np.array_equal(frame[name], values)
