"""The device that a run computes on, and the threads, memory and files it may use there."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.config.host_options import CudaConfig
from esper_overwatch.trainer.config.load import ConfigError

from .torch_private import check_allocator_settings

MAX_OPEN_FILES = 65_536
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""


class DeviceError(EsperError):
    """The requested device does not exist."""

    exit_code = 9


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto` is the first CUDA device, or the CPU where there is none.

    Args:
        local_rank: of several processes on a machine each takes the next device: `auto` and `cuda` count
            from there.

    Raises:
        DeviceError: a CUDA device was requested by name and does not exist.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", local_rank % count) if count else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    index = int(name.partition(":")[2] or local_rank)
    if index >= count:
        raise DeviceError(f"device = {name!r}: torch sees {count} CUDA devices; use --device cpu or auto")
    return torch.device("cuda", index)


ALLOCATOR_SETTINGS = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "roundup_power2_divisions",
)
"""Options of PYTORCH_CUDA_ALLOC_CONF, as torch documents them."""


def configure_allocator(cuda: CudaConfig, environ: MutableMapping[str, str]) -> None:
    """Configure torch's allocator for CUDA devices; call it before the first allocation.

    Raises:
        ConfigError: torch does not know a setting, or refuses its value.
    """
    if cuda.allocator:
        for setting in cuda.allocator.split(","):
            key, _, value = setting.partition(":")
            if key not in ALLOCATOR_SETTINGS:
                known = ", ".join(ALLOCATOR_SETTINGS)
                raise ConfigError(
                    f"cuda.allocator = {cuda.allocator}: torch has no setting {key}, but {known}"
                )
            try:
                check_allocator_settings(setting)
            except (ValueError, RuntimeError):
                message = f"cuda.allocator = {cuda.allocator}: torch refuses {value!r} for {key}"
                raise ConfigError(message) from None
        check_allocator_settings(cuda.allocator)  # the whole: each check forgets the settings before it
        environ["PYTORCH_CUDA_ALLOC_CONF"] = cuda.allocator


def prepare_device(cuda: CudaConfig, device: torch.device) -> None:
    """Make a CUDA device the thread's current one and set how torch computes on it; before its first use.

    Streams, graphs and events belong to the current device, which would be the first one on every rank.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high" if cuda.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = cuda.tf32
        if cuda.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Matrix products of float32 are not rounded to TF32 in the body."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_known_empty(mask: Tensor) -> bool:
    """True if a bool tensor is known to be false everywhere; does not wait for a GPU."""
    return mask.device.type == "cpu" and not mask.any()


def device_memory_bytes(device: torch.device) -> int:
    """Bytes of memory that a GPU has."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def pinned_memory(size: int) -> Tensor:
    """uint8 [size] in memory of the host that a GPU writes to while the host does something else."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array of the host as a tensor on the device, which is not waited for."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def filled(numbers: Sequence[int], device: torch.device) -> Tensor:
    """int64 [k], these numbers, made on the device: nothing is copied."""
    return torch.stack([torch.full((), number, dtype=torch.int64, device=device) for number in numbers])


def upload_together(rows: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """`upload` of several rows of numbers in one copy, each of which costs a GPU's host some microseconds."""
    packed = upload(np.concatenate(rows), device)
    return list(torch.split(packed, [len(row) for row in rows]))


def limit_threads() -> None:
    """One intra-op thread per worker: on shared cores OpenMP's own threads stall each other 3 to 30 times."""
    torch.set_num_threads(1)


_MEMORY_WORDS = (
    "can't allocate memory",
    "bad_alloc",
    "could not create a memory",
    "could not create a primitive",
    "start new thread",
)
"""Messages of torch, C++, oneDNN and Python."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception means that memory ran out; on a CPU only a RuntimeError's text shows it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)


def raise_file_limit() -> None:
    """Raise the limit of open files to what the machine allows: a client takes three, the default is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keep_freed_memory() -> None:
    """Let malloc keep freed memory for the next step instead of returning it to the kernel.

    A training step frees and asks for the same few megabytes again, and each page of them would be mapped and
    zeroed again. C libraries other than glibc have no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 512 << 20)


def return_freed_memory() -> None:
    """Return to the kernel what malloc has kept: after work that takes more than a step ever will."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
