"""What `benchmarks.gpu` reads from a trace, and what it says where there is no device."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import Options, list_cases, measure_all, measure_apart, of_trace

ROOT = Path(__file__).parents[2]


def event(category: str, name: str, begin: float, duration: float, stream: int = 7) -> dict[str, object]:
    return {"cat": category, "name": name, "ts": begin, "dur": duration, "args": {"stream": stream}}


def test_busy_time_counts_overlapping_kernels_once() -> None:
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 0.0, 5.0),
        event("cuda_runtime", "cudaGraphLaunch", 5.0, 5.0),
        event("kernel", "gemm", 100.0, 40.0),
        event("kernel", "relu", 120.0, 40.0, stream=8),
        event("gpu_memcpy", "Memcpy HtoD", 300.0, 20.0),
        {"name": "process_name", "ph": "M", "args": {}},
    ]
    figures = of_trace(events, epochs=2, seconds=80e-6)
    assert figures["busy_share"] == pytest.approx((60 + 20) / 2 / 80)
    assert figures["overlap_share"] == pytest.approx(20 / 80)
    assert (figures["launches_per_epoch"], figures["kernels_per_epoch"]) == (1.0, 1.0)
    assert (figures["copies_per_epoch"], figures["streams"]) == (0.5, 2.0)


def test_trace_without_a_device_has_no_busy_share() -> None:
    figures = of_trace([event("cpu_op", "aten::add", 0.0, 1.0)], epochs=1, seconds=1.0)
    assert math.isnan(figures["busy_share"])
    assert math.isnan(figures["launches_per_epoch"])


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_case_tells_its_figures_in_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    figures, reason = measure_apart(python("""print("hello"); print('{"a": 1.5, "b": null}')"""), 600)
    assert (figures["a"], math.isnan(figures["b"]), reason) == (1.5, True, "")
    assert capsys.readouterr().out == "hello\n"


def test_failing_case_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    figures, reason = measure_apart(python("raise RuntimeError('CUDA error: out of luck')"), 600)
    assert (figures, reason) == ({}, "exit code 1: RuntimeError: CUDA error: out of luck")
    assert "Traceback" in capsys.readouterr().err


def test_case_that_hangs_is_ended() -> None:
    figures, reason = measure_apart(python("import time\nwhile True: time.sleep(1)"), 1)
    assert (figures, reason) == ({}, "took longer than 1 s")


def test_cases_left_without_time_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    cases = list_cases((4, 64))
    assert cases[:3] == ["graphs_64", "sequential_64", "trace-graphs_64"], "what the targets need"
    assert len(cases) == len(set(cases)) == 13
    figures, missing = measure_all(cases, Options("cuda", 2, 4, None), minutes=0, case_seconds=1)
    assert (figures, missing) == ({}, cases)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in lines] == cases
    assert {line["failed"] for line in lines} == {"no time was left"}
    assert lines[0]["repeat"].endswith("--device cuda --rounds 2 --epochs 4 --case graphs_64")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_benchmark_without_a_device_says_so() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 9
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["name"] == "gpu"
    assert "torch sees 0 CUDA devices" in line["skipped"]
