"""Compiled programs: they are what runs; one that computes something else goes on uncompiled and says so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compute.compiler import (
    MAX_UNROLLED_EPOCHS,
    CompiledProgram,
    Compiler,
    first_mismatch,
)
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.loop import Trainer
from tests.cases import nightly

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = (
    "envs.count=4",
    "envs.group_size=4",
    "envs.plan=masked",
    "episode_epochs=2",
    "host.channels=4",
    "seeds.blueprints=norm,conv_light",
    "task.batches_per_epoch=2",
    "policy.hidden=16",
    "ppo.epochs=2",
)


@pytest.fixture
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole by torch.compile as ever, but without the minutes of the C++ compiler."""
    if not getattr(request, "param", True):
        return
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, mode, **options: compile_(f, backend="eager", **options))


def broken(monkeypatch: pytest.MonkeyPatch, compiled: Callable[..., Any]) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled)


class Quiet:
    """Hooks of two rounds."""

    layer_envs = None

    def wants_round(self, finished: int) -> bool:
        return finished < 2

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def train(mode: str, *sets: str) -> Trainer:
    trainer = Trainer(settings.load(sets=[*SMALL, f"compile.mode={mode}", *sets]), load("digits"), CPU)
    trainer.run(Quiet())  # type: ignore[arg-type]
    trainer.population.close()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, nightly(False)], ids=["traced", "whole"], indirect=True)
def test_policy_loss_gae_reward_and_masked_step_run_compiled(quick: None) -> None:
    plain = train("off")
    assert plain.compiler.programs == {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled = train("default")
    programs = compiled.compiler.programs
    assert len(programs) == 5
    assert {name: p.reason for name, p in programs.items() if p.reason} == {}
    assert all(p.calls > 0 for p in programs.values())
    regions = [e for e in profile.events() if e.name.startswith("Torch-Compiled Region")]
    of_main_thread = sum(p.calls for name, p in programs.items() if "training step" not in name)
    assert len(regions) >= of_main_thread, "what was counted did not run compiled"
    torch.testing.assert_close(compiled.rollout.reward, plain.rollout.reward, atol=1e-3, rtol=0)
    for name, value in plain.population.state_dict()["weights"].items():
        other = compiled.population.state_dict()["weights"][name]
        torch.testing.assert_close(other, value, atol=1e-3, rtol=1e-2)


def test_what_cannot_be_compiled_says_why(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = Trainer(
            settings.load(sets=[*SMALL, "compile.mode=default", "envs.plan=gather", "envs.group_size=2"]),
            load("digits"),
            CPU,
        )
    reasons = {name: p.reason for name, p in trainer.compiler.programs.items() if p.reason}
    assert sorted(reasons) == ["the training step of hosts 0 to 1", "the training step of hosts 2 to 3"]
    assert all("envs.plan=masked" in reason for reason in reasons.values())
    assert "runs uncompiled" in caplog.text
    long = Compiler("default", CPU, steps=MAX_UNROLLED_EPOCHS + 1)
    program = long.wrap("a loop", lambda x: x, loops=True)
    assert isinstance(program, CompiledProgram)
    assert str(MAX_UNROLLED_EPOCHS) in program.reason
    alone = Trainer(
        settings.load(sets=[*SMALL, "compile.mode=default", "envs.group_size=1"]), load("digits"), CPU
    )
    assert "one host" in alone.compiler.programs["the training step of hosts 3 to 3"].reason


def product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def wrapped(w: Tensor) -> CompiledProgram[..., Tensor]:
    program = Compiler("default", CPU).wrap("it", product, weights=lambda: [w], objective=torch.sum)
    assert isinstance(program, CompiledProgram)
    return program


@pytest.mark.slow
def test_a_program_of_the_c_compiler_stands_the_check() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    program = wrapped(w)
    for x in (torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])):
        torch.testing.assert_close(program(x, w), x * w)
    assert program.calls == 1, "the first call was compared with the uncompiled one"
    assert not program.reason


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        (lambda x, w: x * w * 1.01, "something else (result 0"),
        (lambda x, w: (x * w).detach() + 0 * w, "gradients: result 0"),
    ],
)
def test_miscompiled_program_runs_uncompiled_and_logs_why(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compiled: Callable[..., Tensor],
    words: str,
) -> None:
    broken(monkeypatch, compiled)
    x, w = torch.arange(1.0, 5.0), torch.full((4,), 2.0, requires_grad=True)
    program = wrapped(w)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(program(x, w), x * w)
    assert words in program.reason
    assert [r.getMessage() for r in caplog.records] == [f"it runs uncompiled: {program.reason}"]
    assert program.calls == 0
    (gradient,) = torch.autograd.grad(program(x, w).sum(), w)
    assert torch.equal(gradient, x)


def test_a_compiler_that_gives_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Tensor, w: Tensor) -> Tensor:
        raise RuntimeError("no working C++ compiler\nand much more")

    broken(monkeypatch, fails)
    w = torch.ones(2, requires_grad=True)
    program = wrapped(w)
    assert torch.equal(program(torch.ones(2), w), torch.ones(2))
    assert program.reason == "torch.compile: RuntimeError: no working C++ compiler"


def test_other_shapes_are_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda x, w: x * w if len(x) == 2 else x * w + 1)
    w = torch.ones(1, requires_grad=True)
    program = wrapped(w)
    for _ in range(3):
        program(torch.ones(2), w)
    assert (program.calls, program.reason) == (2, "")
    assert torch.equal(program(torch.ones(3), w), torch.ones(3))
    assert program.reason


def test_differences_are_told_beside_rounding() -> None:
    nan, x = float("nan"), torch.tensor([1.0, 1000.0])
    assert first_mismatch([x, torch.tensor([nan])], [x + 1e-4, torch.tensor([nan])]) == ""
    assert first_mismatch([x], [torch.tensor([1.0, 1002.0])]).startswith("result 0 of shape [2] by up to 2")
    assert first_mismatch([torch.tensor([3])], [torch.tensor([4])]) != ""
    assert first_mismatch([torch.tensor([nan])], [torch.tensor([1.0])]) != ""
    assert partial(first_mismatch, tolerance=0.1)([x], [x * 1.05]) == ""


def test_results_of_a_derived_program_outlive_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones((), requires_grad=True)
    memory = torch.zeros(())  # as of the CUDA graphs that this mode makes: each call writes into it

    def compiled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * weight, memory.copy_(x)

    broken(monkeypatch, compiled)
    compiler = Compiler("reduce-overhead", torch.device("cuda"))
    program = compiler.wrap(
        "it", lambda x: (x * weight, x.clone()), weights=lambda: [weight], objective=lambda out: out[0]
    )
    kept = [program(torch.tensor(float(i)))[1] for i in range(4)]
    assert [float(k) for k in kept] == [0, 1, 2, 3]


@pytest.mark.slow
def test_run_that_compiles_nothing_loads_no_compiler(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom esper_overwatch.trainer.__main__ import main\n"
        "try:\n    main()\nfinally:\n    print('torch._dynamo' in sys.modules)\n"
    )
    sets = ("envs.count=2", "ppo.minibatches=1", "episode_epochs=3", "task.batches_per_epoch=2", "device=cpu")
    words = ["start", "r", "--rounds", "1", *(word for one in sets for word in ("--set", one))]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=os.environ | {"ESPER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
