"""What only a real CUDA device can show: captures, streams, waits and repeats; skipped where there is none.

The same code on a CPU, with a recording in the place of a graph, is tested in tests/trainer/compute.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper_overwatch.trainer.compute.cuda_graphs import NUM_CHECKED_CALLS, CudaGraphProgram, CudaGraphs
from esper_overwatch.trainer.compute.device import prepare_device, resolve_device
from esper_overwatch.trainer.compute.pointwise import FusedFormula
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.host_options import CudaConfig
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.autotune import choose_execution
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.seeds.blend import MIXED_BLEND, MIXED_GRADIENT
from tests.cases import nightly
from tests.trainer.compute.test_compiler import SMALL, Quiet
from tests.trainer.compute.test_cuda_graphs import same, train
from tests.trainer.test_late_reports import assert_late_frames_are_the_same

NUM_DEVICES = torch.cuda.device_count() if torch.cuda.is_available() else 0
DEVICE = torch.device("cuda", 0)
EXACT = ("amp.dtype=off", "cuda.tf32=false")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device")]
two_devices = pytest.mark.skipif(NUM_DEVICES < 2, reason="needs two CUDA devices")


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    """What a run sets for the process is set back."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.cuda.set_device(DEVICE)
    torch.cuda.set_sync_debug_mode("default")


def program_of(work: object) -> CudaGraphProgram[..., torch.Tensor]:
    program = CudaGraphs(on=True).wrap("it", work)  # type: ignore[arg-type]
    assert isinstance(program, CudaGraphProgram)
    return program


def test_run_uses_the_device_that_its_rank_resolves() -> None:
    device = resolve_device("auto", local_rank=NUM_DEVICES - 1)
    prepare_device(CudaConfig(), device)
    assert torch.cuda.current_device() == device.index == NUM_DEVICES - 1
    assert torch.cuda.Stream().device == device  # type: ignore[no-untyped-call]


@two_devices
def test_second_device_captures_what_is_issued_on_it() -> None:
    device = torch.device("cuda", 1)
    prepare_device(CudaConfig(), device)
    program = program_of(lambda x: x + 1)
    assert [float(program(torch.full((4,), float(i), device=device))[0]) for i in range(4)] == [1, 2, 3, 4]
    assert (program.reason, program.replays) == ("", 4 - NUM_CHECKED_CALLS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("formula", [MIXED_BLEND, MIXED_GRADIENT])
def test_formula_of_seeds_is_one_kernel(formula: FusedFormula, dtype: torch.dtype) -> None:
    g, x, s = (torch.randn(4, 5, 5, 6, 8, device=DEVICE, dtype=dtype) for _ in range(3))
    by = torch.rand(4, 1, 1, 6, 1, device=DEVICE)
    flags = [(torch.arange(6, device=DEVICE) % k == 0).unsqueeze(1) for k in (2, 3)]
    ins = [by, x, s, flags[0]] if formula is MIXED_BLEND else [g, by, x, s, *flags]
    expected = formula.plain(*ins)
    for _ in range(2):  # compared, then as it is used
        for one, other in zip(formula(*ins), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02, check_dtype=False)
    assert formula.reason == ""


def test_formula_that_does_not_compile_goes_operation_by_operation() -> None:
    formula = FusedFormula(
        "template <typename T> void wrong(T a, T& out) { out = b; }", 1, lambda a: (a + 1,)
    )
    assert [formula(torch.zeros(3, device=DEVICE))[0].tolist() for _ in range(2)] == [[1.0] * 3] * 2
    assert formula.reason


def test_formula_that_differs_goes_operation_by_operation() -> None:
    formula = FusedFormula(
        "template <typename T> void other(T a, T& out) { out = a; }", 1, lambda a: (a + 1,)
    )
    assert [formula(torch.zeros(3, device=DEVICE))[0].tolist() for _ in range(2)] == [[1.0] * 3] * 2
    assert "by up to 1" in formula.reason


def test_graphs_of_several_groups_replay_on_streams_as_without() -> None:
    sets = (*EXACT, "envs.count=32", "envs.group_size=8", "host.channels=32,32,32")
    replayed = train(DEVICE, *sets)
    assert {p.reason for p in replayed.graphs.programs.values()} == {""}
    assert len(replayed.population._executor._streams) == 4
    same(train(DEVICE, *sets, "cuda.graphs=false"), replayed, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_precision_step_keeps_its_graph(dtype: str) -> None:
    replayed = train(DEVICE, f"amp.dtype={dtype}")
    assert {p.reason for p in replayed.graphs.programs.values()} == {""}
    same(train(DEVICE, f"amp.dtype={dtype}", "cuda.graphs=false"), replayed, tolerance=5e-2)


def test_graph_with_a_number_of_the_host_is_refused() -> None:
    factor = [1.0]
    program = program_of(lambda x: x * factor[0])
    x = torch.ones(4, device=DEVICE)
    assert float(program(x)[0]) == 1.0
    factor[0] = 2.0
    assert float(program(x)[0]) == 2.0
    assert program.reason


def test_graph_of_nothing_is_refused() -> None:
    made = torch.ones(4, device=DEVICE)
    program = program_of(lambda x: made)
    assert torch.equal(program(made), made)
    assert program.reason


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_epoch_waits_for_the_gpu_at_its_transfer_alone(plan: str, augmented: bool) -> None:
    sets = [*SMALL, f"envs.plan={plan}", "episode_epochs=8", *(["task.augment=crop,flip"] * augmented)]
    trainer = Trainer(settings.load(sets=sets), load("digits", DEVICE), DEVICE)

    class Strict(Quiet):
        def on_epoch_begin(self, epoch: int, epochs: int) -> None:
            if epoch >= NUM_CHECKED_CALLS:
                torch.cuda.set_sync_debug_mode("error")

        def on_epoch_end(self, round: int, epoch: int) -> None:
            torch.cuda.set_sync_debug_mode("default")

    trainer.play(Strict())  # type: ignore[arg-type]
    assert trainer.to_host.count == 9, "one for the first decision, one for each epoch"


def test_failed_capture_harms_nothing_after_it() -> None:
    graphs = CudaGraphs(on=True)
    before = graphs.wrap("before", lambda x: x @ x)
    waiting = graphs.wrap("waiting", lambda x: x * float(x.sum()))
    after = graphs.wrap("after", lambda x: (x @ x).relu())
    x = torch.randn(64, 64, device=DEVICE)
    for program, expected in ((before, x @ x), (waiting, x * float(x.sum())), (after, (x @ x).relu())):
        for _ in range(4):
            torch.testing.assert_close(program(x), expected, atol=1e-3, rtol=1e-3)
    torch.cuda.empty_cache()
    torch.testing.assert_close(before(x), x @ x, atol=1e-3, rtol=1e-3)
    assert graphs.failure
    assert graphs.programs["before"].replays == 5 - NUM_CHECKED_CALLS
    assert graphs.programs["after"].reason == graphs.failure


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", nightly("reduce-overhead")])
def test_compiled_updates_keep_what_earlier_minibatches_measured(mode: str) -> None:
    compiled = train(DEVICE, *EXACT, f"compile.mode={mode}")
    assert {p.reason for p in compiled.compiler.programs.values()} == {""}
    same(train(DEVICE, *EXACT), compiled, tolerance=1e-3)


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_deterministic_run_repeats_and_resumes_bit_for_bit(plan: str) -> None:
    sets = [*SMALL, f"envs.plan={plan}", "cuda.deterministic=true"]
    config = settings.load(sets=sets)
    prepare_device(config.cuda, DEVICE)
    whole = train(DEVICE, *sets)
    same(whole, train(DEVICE, *sets))

    class OneRound(Quiet):
        def wants_round(self, finished: int) -> bool:
            return finished < 1

    part, rest = (Trainer(config, load("digits", DEVICE), DEVICE) for _ in range(2))
    part.run(OneRound())  # type: ignore[arg-type]
    saved = io.BytesIO()
    torch.save(part.state_dict(), saved)
    saved.seek(0)
    rest.load_state_dict(torch.load(saved, map_location="cpu", weights_only=True))
    rest.run(Quiet())  # type: ignore[arg-type]
    same(whole, rest)


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_late_frames_are_those_told_at_once(plan: str) -> None:
    sets = (f"envs.plan={plan}", "cuda.deterministic=true")
    prepare_device(settings.load(sets=list(sets)).cuda, DEVICE)
    assert_late_frames_are_the_same(*sets, device=DEVICE)


def test_plan_is_measured_once_and_kept() -> None:
    sets = [name for name in SMALL if not name.startswith("envs.plan")]
    config = settings.load(sets=sets)
    data = load("digits", DEVICE)
    graphs = CudaGraphs(on=True)
    execution = choose_execution(config, data, DEVICE, graphs)
    assert not graphs.failure
    assert Trainer(config, data, DEVICE, execution).population.execution == execution


def train_on_two_ranks(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    sets = [word for each in (*SMALL, "cuda.graphs=false") for word in ("--set", each)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    home = {"ESPER_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)}
    return subprocess.run(
        [*command, "-m", "esper_overwatch.trainer", "start", "two", "--rounds", "1", *sets, *options],
        env=os.environ | home,
        capture_output=True,
        text=True,
    )


def test_two_ranks_train_on_the_devices_there_are(tmp_path: Path) -> None:
    done = train_on_two_ranks(tmp_path, "--device", "auto")
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_ranks_on_one_named_device_are_refused(tmp_path: Path) -> None:
    done = train_on_two_ranks(tmp_path, "--device", "cuda:0")
    assert done.returncode != 0
    assert "is one device for several ranks" in done.stdout + done.stderr
