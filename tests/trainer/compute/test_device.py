"""What is set of a CUDA device, without one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from esper_overwatch.trainer.compute.device import (
    configure_allocator,
    exact_float32,
    is_out_of_memory,
    prepare_device,
)
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.host_options import CudaConfig
from esper_overwatch.trainer.config.load import ConfigError

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """The devices that were made the current one; puts back what a test has set."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    yield devices
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark = flags
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_tf32_is_set_on_cuda_devices_only() -> None:
    before = torch.get_float32_matmul_precision()
    prepare_device(CudaConfig(tf32=False), torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == before
    prepare_device(CudaConfig(tf32=True), CUDA)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    prepare_device(CudaConfig(tf32=False), CUDA)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)


def test_the_runs_device_is_made_the_current_one(chosen: list[torch.device]) -> None:
    prepare_device(CudaConfig(), torch.device("cpu"))
    assert chosen == []
    prepare_device(CudaConfig(), torch.device("cuda", 3))
    assert chosen == [torch.device("cuda", 3)], "streams, graphs and events would else be the first one's"


def test_deterministic_algorithms_are_chosen_on_cuda_devices_only() -> None:
    for options, device in ((CudaConfig(deterministic=True), torch.device("cpu")), (CudaConfig(), CUDA)):
        prepare_device(options, device)
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    prepare_device(CudaConfig(deterministic=True), CUDA)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_policy_products_are_exact_while_hosts_use_tf32() -> None:
    prepare_device(CudaConfig(tf32=True), CUDA)
    with exact_float32(CUDA):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "high"


def test_allocator_is_configured_by_environment_only_when_asked() -> None:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    configure_allocator(CudaConfig(), environ)
    assert environ == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    option = settings.load(sets=["cuda.allocator=expandable_segments:True,max_split_size_mb:128"]).cuda
    configure_allocator(option, environ)
    assert environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,max_split_size_mb:128"
    assert torch._C._accelerator_getAllocatorSettings() == environ["PYTORCH_CUDA_ALLOC_CONF"]
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
