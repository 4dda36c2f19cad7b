"""What is set of a CUDA device, without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.compute.device import configure_allocator, is_out_of_memory, set_float32_precision
from trainer.config import load as settings
from trainer.config.host_options import CudaConfig
from trainer.config.load import ConfigError

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_tf32_is_set_on_cuda_devices_only() -> None:
    before = torch.get_float32_matmul_precision()
    set_float32_precision(CudaConfig(tf32=False), torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == before
    set_float32_precision(CudaConfig(tf32=True), CUDA)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    set_float32_precision(CudaConfig(tf32=False), CUDA)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)


def test_allocator_is_configured_by_environment_only_when_asked() -> None:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    configure_allocator(CudaConfig(), environ)
    assert environ == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    option = settings.load(sets=["cuda.allocator=expandable_segments:True,max_split_size_mb:128"]).cuda
    configure_allocator(option, environ)
    assert environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,max_split_size_mb:128"
    with pytest.raises(ConfigError, match=r"cuda\.allocator"):
        settings.load(sets=["cuda.allocator=expandable"])


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            True,
        ),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory
