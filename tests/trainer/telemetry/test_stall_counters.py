"""What hinders a run is counted; what cannot be measured here is told as such."""

from __future__ import annotations

import faulthandler
import logging
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo.utils as dynamo

from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.daemon.logging_setup import set_up
from esper_overwatch.trainer.telemetry import stall_counters as module
from esper_overwatch.trainer.telemetry.stall_counters import StallCounters, StallCounts

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    dynamo.reset_recompile_user_contexts()


def test_graph_breaks_and_recompilations() -> None:
    counters = StallCounters(torch.device("cpu"))

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    program = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    for n in (2, 3, 4):
        program(torch.ones(n))
    torch.compile(broken, backend="eager")(torch.ones(2))
    assert counters.take(5) == StallCounts(
        device_syncs=None, graph_breaks=1, recompiles=2, allocator_retries=None
    )
    program(torch.ones(4))
    assert counters.take(6) == StallCounts(
        device_syncs=None, graph_breaks=0, recompiles=0, allocator_retries=None
    )


def wait_once() -> None:
    """Warn as torch does, for each wait, while it is asked to."""
    warnings.warn(f"{module._SYNC} (Triggered internally at CUDAFunctions.cpp:145.)", stacklevel=1)


def test_waits_for_a_gpu_are_counted_from_torchs_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the driver's part replaced: the warning is the one that torch has for each wait."""
    seen: list[str] = []
    retries = {"num_alloc_retries": 3}
    with warnings.catch_warnings():
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: seen.append(mode))
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: retries)
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: seen.append(str(message)))
        counters = StallCounters(torch.device("cuda"), syncs_every=1)
        counters.begin_round()
        for _ in range(3):
            wait_once()
        warnings.warn("something else", stacklevel=1)
        retries["num_alloc_retries"] = 5
        found = counters.take(24)
    assert (found.device_syncs, found.allocator_retries) == (27, 2)
    assert seen == ["warn", "something else"]


def test_torch_warns_of_waits_in_one_round_of_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = ["default"]
    rounds: dict[int, int | None] = {}
    with warnings.catch_warnings():
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda name: mode.append(name))
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        counters = StallCounters(torch.device("cuda"))
        for round in range(1, 36):
            counters.begin_round()
            if mode[-1] == "warn":
                wait_once()
            rounds[round] = counters.take(2 * round).device_syncs
    assert {round: syncs for round, syncs in rounds.items() if syncs is not None} == {2: 3, 18: 3, 34: 3}
    assert mode == ["default", *(["warn", "default"] * 3)]


@pytest.fixture
def _kept_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `set_up` changes of the process is put back, or not done."""
    monkeypatch.setattr(faulthandler, "enable", lambda file: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    logging.captureWarnings(False)
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("_kept_logging")
def test_daemons_log_has_no_line_for_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of a daemon: its log takes over Python's warnings after the counters were made."""
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
    emitter = Emitter()
    with warnings.catch_warnings():
        counters = StallCounters(torch.device("cuda"))
        with set_up(tmp_path / "daemon.log", emitter, terminal=False):
            of_log = warnings.showwarning
            for _ in range(2):
                counters.begin_round()
            for _ in range(3):
                wait_once()
            assert counters.take(2).device_syncs == 5
            assert emitter.waiting["log"] == 0
            warnings.warn("something else", stacklevel=1)
            assert emitter.waiting["log"] == 1
            counters.begin_round()
            assert warnings.showwarning is of_log, "nothing is left in a round that is not counted"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_wait_of_a_gpu_is_counted() -> None:
    x = torch.ones(4, device="cuda")
    try:
        with warnings.catch_warnings():
            counters = StallCounters(x.device, syncs_every=1)
            counters.begin_round()
            for _ in range(3):
                x.sum().item()
            assert counters.take(0).device_syncs == 3
    finally:
        torch.cuda.set_sync_debug_mode("default")
