"""Builds and loads the simulated CUDA device; `load` comes before torch is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_cuda.cpp")


def find_compiler() -> str | None:
    """The C++ compiler, where the machine has one."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def build(folder: Path) -> Path:
    """Compile the device against the installed torch; takes seconds.

    Raises:
        CalledProcessError: it does not compile; the output names the line.
    """
    compiler, library = find_compiler(), folder / "fake_cuda.so"
    assert compiler is not None
    include = _torch_folder() / "include"
    flags = ("-std=c++20", "-O0", "-w", "-shared", "-fPIC", f"-I{include}")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


def load(library: Path) -> None:
    """Register the device, then import torch as if it had been built with CUDA."""
    for path in (*(_torch_folder() / "lib" / name for name in ("libc10.so", "libtorch_cpu.so")), library):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    import torch
    import torch.amp.autocast_mode
    import torch.cuda.amp.common as common

    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
