"""What a GPU compiles of the graft, compiled for this machine, computes what torch's operations do."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compute.branches import (
    DIFFERENCE,
    DIFFERENCE_GRADIENT,
    RECTIFIED_PRODUCT,
    RECTIFIED_PRODUCTS,
    SQUASHED_GRADIENT,
    SQUASHED_PRODUCT,
)
from esper_overwatch.trainer.compute.pointwise import FusedFormula
from esper_overwatch.trainer.compute.rng import MIX
from esper_overwatch.trainer.compute.stacked_ops import PRODUCTS
from esper_overwatch.trainer.compute.torch_private import compile_pointwise
from esper_overwatch.trainer.hosts.cnn import FOLDED_NORM
from esper_overwatch.trainer.seeds.blend import (
    AUDIBLE_SUM,
    GATED_ALPHA,
    GATED_ALPHA_GRADIENT,
    MIXED_BLEND,
    MIXED_GRADIENT,
)
from tests.gpu.nvrtc import compile_source, find_nvrtc

COMPILER, NVRTC = shutil.which("c++"), find_nvrtc()


def compiled(formula: FusedFormula, ins: list[Tensor], results: int, folder: Path) -> list[Tensor]:
    """The results of the formula's code in the dtype of its first input, number by number."""
    found = re.search(r"void (\w+)\(", formula.code)
    assert found is not None
    assert compile_pointwise(formula.code, results).kernel_name == found[1], "as torch reads it"  # type: ignore[attr-defined]
    inputs = ", ".join(f"x[{i}][j]" for i in range(len(ins)))
    outputs = ", ".join(f"y[{i}][j]" for i in range(results))
    kind = {torch.float64: "double", torch.int64: "long"}[ins[0].dtype]
    source = folder / "formula.cpp"
    source.write_text(
        f"#include <math.h>\n{formula.code}\n"
        f'extern "C" void run(const {kind}* const* x, {kind}* const* y, long count) {{\n'
        f"    for (long j = 0; j < count; ++j) {found.group(1)}<{kind}>({inputs}, {outputs});\n}}\n"
    )
    assert COMPILER is not None
    library = folder / "formula.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    wide = [x.to(ins[0].dtype).contiguous() for x in torch.broadcast_tensors(*ins)]
    made = [torch.empty_like(wide[0]) for _ in range(results)]
    pointers = [(ctypes.c_void_p * len(part))(*(x.data_ptr() for x in part)) for part in (wide, made)]
    ctypes.CDLL(str(library)).run(*pointers, ctypes.c_long(wide[0].numel()))
    return made


FORMULAS = {
    "blend": MIXED_BLEND,
    "gradient": MIXED_GRADIENT,
    "sum": AUDIBLE_SUM,
    "gated alpha": GATED_ALPHA,
    "gated alpha's gradient": GATED_ALPHA_GRADIENT,
    "products": PRODUCTS,
    "rectified product": RECTIFIED_PRODUCT,
    "rectified products": RECTIFIED_PRODUCTS,
    "difference": DIFFERENCE,
    "difference gradient": DIFFERENCE_GRADIENT,
    "squashed product": SQUASHED_PRODUCT,
    "squashed gradient": SQUASHED_GRADIENT,
    "folded norm": FOLDED_NORM,
    "mix": MIX,
}


@pytest.mark.skipif(NVRTC is None, reason="needs NVIDIA's compiler: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize(
    ("name", "kind"), [*product(sorted(FORMULAS.keys() - {"mix"}), ("float", "double")), ("mix", "long long")]
)
def test_nvidias_compiler_takes_the_code(name: str, kind: str) -> None:
    code = FORMULAS[name].code
    found = re.search(r"void (\w+)\(([^)]*)\)", code)
    assert found is not None
    assert NVRTC is not None
    count = found[2].count("T ") + found[2].count("T& ")
    taken, given = (", ".join(f"{part}{i}" for i in range(count)) for part in (f"{kind} *x", "*x"))
    kernel = f'extern "C" __global__ void run({taken}) {{ {found[1]}<{kind}>({given}); }}'
    assert compile_source(NVRTC, f"{code}\n{kernel}") == ""


@pytest.mark.skipif(NVRTC is None, reason="needs NVIDIA's compiler: pip install nvidia-cuda-nvrtc")
def test_nvidias_compiler_refuses_what_is_not_declared() -> None:
    assert NVRTC is not None
    assert "undefined" in compile_source(NVRTC, 'extern "C" __global__ void run() { nothing(); }')


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", FORMULAS)
def test_code_computes_what_operations_do(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    g, x, s = (torch.randn(2, 3, 3, 8, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    by = torch.rand(2, 1, 1, 8, 1, dtype=torch.float64, generator=generator)
    by[..., :3, :] = 0.0
    s[..., 0, :] = torch.inf  # a seed that reaches nobody, whatever it puts out
    multiply = torch.arange(8).unsqueeze(1) % 2 == 0
    isolated = (torch.arange(8) == 1).unsqueeze(1)
    ins = {
        "blend": [by, x, s, multiply],
        "gradient": [g, by, x, s, multiply, isolated],
        "sum": [g, x, s, torch.arange(8).unsqueeze(1) > 2],
        "gated alpha": [x, by, multiply],
        "gated alpha's gradient": [g, x, by, multiply],
        "products": [g, x, s],
        "rectified product": [x, by],
        "rectified products": [g, x, by],
        "difference": [g, x, by],
        "difference gradient": [g, x, s, by],
        "squashed product": [x, g],
        "squashed gradient": [g, x, by],
        "folded norm": [g, x, x, s * s],
        "mix": [torch.arange(-4, 4) * (1 << 60) - 1],
    }[name]
    expected = FORMULAS[name].plain(*ins)
    for one, other in zip(compiled(FORMULAS[name], ins, len(expected), tmp_path), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
    untouched = {"blend": x, "gradient": g, "sum": g}.get(name)
    assert untouched is None or torch.equal(expected[0][..., 0, :], untouched[..., 0, :])
