"""Private names of torch that we use: the page to review when its version changes.

The pin in constraints.txt says which torch has these. No other module may name a private part of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    "all_threads_profiler_config",
    "assert_on_device",
    "check_allocator_settings",
    "clear_cublas_workspaces",
    "compile_pointwise",
    "copy_each_",
    "count_graph_breaks",
    "is_compiler_loaded",
    "is_recompiling",
    "limit_recompiles",
    "memory_key",
    "on_compile",
    "tree_leaves",
    "tree_map_only",
    "use_plain_cpu_layouts",
]


def copy_each_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, in one operation."""
    torch._foreach_copy_(targets, sources)


def memory_key(tensor: Tensor) -> tuple[object, ...]:
    """Identity of a tensor's memory and layout: equal for two tensors only if they are the same numbers."""
    storage = tensor.untyped_storage()
    return storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def assert_on_device(holds: Tensor, message: str) -> None:
    """Assert a bool [] without waiting for the device: a CPU raises at once, a GPU with a later operation."""
    torch._assert_async(holds, message)


def check_allocator_settings(settings: str) -> None:
    """Give torch's own parser a text for PYTORCH_CUDA_ALLOC_CONF; no device is needed.

    Raises:
        ValueError, RuntimeError: torch refuses it.
    """
    torch._C._accelerator_setAllocatorSettings(settings)


def clear_cublas_workspaces() -> None:
    """Free cuBLAS's workspaces, one per stream: the next product on a stream allocates its own again."""
    torch._C._cuda_clearCublasWorkspaces()


def compile_pointwise(code: str, results: int) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """A CUDA kernel from a C++ function template, compiled at its first call; see `FusedFormula`."""
    return torch.cuda.jiterator._create_multi_output_jit_fn(code, num_outputs=results)


def all_threads_profiler_config() -> _ExperimentalConfig:
    """Make torch.profiler follow all threads of the process (torch 2.6), not only the one that started it."""
    return _ExperimentalConfig(profile_all_threads=True)


def limit_recompiles(limit: int) -> None:
    """Limit the graphs that torch.compile makes of one function before it gives up."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = limit


def use_plain_cpu_layouts() -> None:
    """Keep the memory order of convolutions in programs compiled for a CPU, and compile in this process.

    With layout optimisation, torch 2.13 computes a convolution whose weight is gathered in the graph wrongly.
    """
    import torch._inductor.config as inductor

    inductor.layout_optimization = False
    inductor.compile_threads = 1


def is_compiler_loaded() -> bool:
    """Whether anything has asked for torch.compile: loading it takes as long as the rest of torch."""
    return "torch._dynamo" in sys.modules


def on_compile(callback: Callable[[], str]) -> None:
    """Call back before each compilation of a function; the text returned goes into torch's own log."""
    import torch._dynamo.utils as dynamo

    dynamo.register_hook_for_recompile_user_context(callback)


def is_recompiling() -> bool:
    """True if the function being compiled has been compiled before; for callbacks of `on_compile`."""
    from torch._guards import CompileContext

    compiled = CompileContext.current_compile_id()
    return compiled is not None and bool(compiled.frame_compile_id)


def count_graph_breaks() -> int:
    """Graph breaks of torch.compile in this process so far."""
    if not is_compiler_loaded():
        return 0
    import torch._dynamo.utils as dynamo

    return sum(dynamo.counters["graph_break"].values())
