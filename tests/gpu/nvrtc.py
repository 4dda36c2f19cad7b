"""NVIDIA's compiler for running programs, which needs no GPU: `pip install nvidia-cuda-nvrtc`."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

ARCHITECTURE = b"compute_80"
"""The oldest GPU that is known to be used; its code is taken by newer ones."""


def find_nvrtc() -> Path | None:
    """The library, where a wheel of NVIDIA's has brought it."""
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    found = [path for folder in folders for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*"))]
    return next((path for path in found if ".alt." not in path.name), None)


def compile_source(library: Path, source: str) -> str:
    """What the compiler complains of; empty where it has compiled the source, with torch's options."""
    for part in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(part))  # else it is not found beside the library
    nvrtc = ctypes.CDLL(str(library))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"f.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=" + ARCHITECTURE, b"--std=c++17", b"-default-device"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() or f"NVRTC's error {failed}" if failed else ""
