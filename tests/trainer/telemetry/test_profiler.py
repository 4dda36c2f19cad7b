"""The profiler writes real traces of exactly the window asked for, and never harms the run."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from esper_overwatch.protocol.messages.events import ProfilerFinished, ProfilerStarted
from esper_overwatch.trainer.telemetry import profiler
from esper_overwatch.trainer.telemetry.profiler import Profiler
from esper_overwatch.trainer.telemetry.timer import PhaseTimer
from esper_overwatch.trainer.telemetry.trace import top_operators, utilisation

torch.set_num_threads(1)


class Run:
    """A loop with real operators: two worker threads train, then one update per round."""

    def __init__(self, folder: Path, epochs: int = 4) -> None:
        self.told: list[Any] = []
        self.profiler = Profiler(folder, self.told.append)
        self.timer = PhaseTimer()
        self.epochs = epochs

    def round(self, number: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            for epoch in range(self.epochs):
                self.profiler.epoch_begin(number, epoch, self.epochs - epoch)
                with self.timer.phase("train"):
                    list(pool.map(train, range(2)))
                self.profiler.epoch_end()
        with self.timer.phase("update"):
            torch.linalg.svd(torch.eye(8))
        self.profiler.round_end()


def train(_: int) -> None:
    a = torch.ones(256, 256)
    for _ in range(5):
        a = torch.mm(a, a) / 256


def trace(finished: ProfilerFinished) -> list[dict[str, Any]]:
    with open(finished.path) as file:
        return json.load(file)["traceEvents"]  # type: ignore[no-any-return]


def names(events: list[dict[str, Any]], category: str) -> list[str]:
    return [e["name"] for e in events if e.get("cat") == category]


def test_a_window_of_epochs(tmp_path: Path) -> None:
    run = Run(tmp_path / "traces")
    run.profiler.start(2, command="c1")
    assert run.profiler.active
    run.round(1)
    started, finished = run.told
    assert started == ProfilerStarted(epochs=2, command="c1")
    assert (finished.epochs, finished.command, finished.error) == (2, "c1", None)
    assert finished.bytes == Path(finished.path).stat().st_size
    assert re.fullmatch(r"round-000001-epoch-00000\.\d+\.pt\.trace\.json", Path(finished.path).name)
    assert not run.profiler.active

    events = trace(finished)
    assert names(events, "cpu_op").count("aten::mm") == 2 * 2 * 5  # both workers, both epochs
    assert names(events, "user_annotation").count("train") == 2
    assert "update" not in names(events, "user_annotation")
    top = {row["name"]: row for row in finished.top}
    assert top["aten::mm"]["calls"] == 20
    assert top["aten::mm"]["on"] == "cpu"
    assert 0 < top["aten::mm"]["share"] < 1
    assert [path.name for path in tmp_path.rglob("*.partial")] == []


def test_a_window_with_the_update_waits_for_the_rounds_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.profiler.start(1, with_update=True)
    run.round(3)
    _, finished = run.told
    assert Path(finished.path).name.startswith("round-000003-epoch-00003.")
    assert finished.epochs == 1
    events = trace(finished)
    assert names(events, "user_annotation").count("train") == 1
    assert "update" in names(events, "user_annotation")
    assert "aten::linalg_svd" in names(events, "cpu_op")


def test_a_window_across_a_rounds_end_holds_the_update(tmp_path: Path) -> None:
    run = Run(tmp_path, epochs=2)
    run.profiler.start(3)
    run.round(1)
    assert run.profiler.active
    run.round(2)
    _, finished = run.told
    assert finished.epochs == 3
    assert names(trace(finished), "user_annotation").count("update") == 1


def test_stop_writes_what_there_is(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.profiler.start(100, command="c")
    run.round(1)
    run.profiler.stop()
    _, finished = run.told
    assert (finished.epochs, finished.error) == (4, None)
    assert "aten::mm" in names(trace(finished), "cpu_op")


def test_stop_before_anything_was_recorded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.profiler.start(2, command="c")
    run.profiler.stop()
    (finished,) = run.told
    assert finished.command == "c"
    assert "before an epoch" in finished.error
    run.profiler.stop()
    assert len(run.told) == 1


def test_one_at_a_time(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.profiler.start(1)
    with pytest.raises(ValueError, match="already"):
        run.profiler.start(1)


def test_two_windows_at_the_same_place_keep_both_traces(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(2):
        run.profiler.start(1)
        run.round(1)
    paths = {e.path for e in run.told if isinstance(e, ProfilerFinished)}
    assert len(paths) == 2
    assert all(Path(path).exists() for path in paths)


def test_unwritable_trace_folder_is_reported_and_run_continues(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file")
    run = Run(tmp_path / "traces")
    run.profiler.start(1, command="c")
    run.round(1)
    _, finished = run.told
    assert finished.command == "c"
    assert str(tmp_path / "traces") in finished.error
    run.profiler = Profiler(tmp_path / "elsewhere", run.told.append)
    run.profiler.start(1)
    run.round(2)
    assert run.told[-1].error is None


def event(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def test_self_time_is_what_is_left_of_the_children() -> None:
    events = [
        event("outer", 0, 100),
        event("inner", 10, 30),
        event("leaf", 15, 10),
        event("inner", 50, 20),
        event("outer", 0, 7, tid=2),  # the same time on another thread is another lane
        event("matmul", 0, 50, tid=7, cat="kernel"),
        event("train", 0, 500, cat="user_annotation"),
    ]
    rows = {
        (r["name"], r["on"]): (r["calls"], r["self_us"], r["share"])
        for r in top_operators({"traceEvents": events})
    }
    assert rows == {
        ("outer", "cpu"): (2, 57.0, 0.5327),
        ("inner", "cpu"): (2, 40.0, 0.3738),
        ("leaf", "cpu"): (1, 10.0, 0.0935),
        ("matmul", "device"): (1, 50.0, 1.0),
    }


def test_how_well_the_machine_was_used() -> None:
    events = [
        event("ProfilerStep#0", 0, 1000, cat="user_annotation"),
        event("outer", 100, 100),
        event("aten::empty", 120, 30),
        event("elsewhere", 150, 150, tid=2),
        event("cudaMalloc", 400, 70, cat="cuda_runtime"),
        event("matmul", 450, 100, tid=7, cat="kernel"),
        event("copy", 500, 150, tid=8, cat="gpu_memcpy"),
    ]
    assert utilisation({"traceEvents": events}) == {
        "gpu_utilisation": 0.2,
        "kernels": 1,
        "allocator_seconds": pytest.approx(1e-4),
        "python_share": 0.73,
    }
    on_cpu = utilisation({"traceEvents": events[:4]})
    assert (on_cpu["gpu_utilisation"], on_cpu["kernels"], on_cpu["python_share"]) == (None, None, 0.8)
    assert utilisation({"traceEvents": []}) == {}


def test_real_trace_has_one_step_per_epoch(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.profiler.start(2, with_update=True)
    run.round(1)
    _, finished = run.told
    assert 0.0 < finished.python_share < 1.0
    assert finished.allocator_seconds > 0.0
    assert (finished.kernels is None) == (not torch.cuda.is_available())
    events = trace(finished)
    steps = sorted((e["name"], e["ts"], e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
    assert [name for name, _, _ in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    (update,) = [e for e in events if e["name"] == "update"]
    assert steps[1][1] <= update["ts"] <= steps[1][1] + steps[1][2], "the update belongs to the last step"


def test_the_trace_is_found_by_tensorboards_plugin(tmp_path: Path) -> None:
    """By the pattern with which torch-tb-profiler looks for workers and spans in a folder."""
    run = Run(tmp_path)
    run.profiler.start(1)
    run.round(1)
    name = Path(run.told[-1].path).name
    found = re.match(r"""^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$""", name)
    assert found is not None
    assert found.group(1) == "round-000001-epoch-00000"
    assert found.group(2) is not None


def test_every_kind_of_device_that_is_there_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    asked = []

    def on_the_cpu_alone(*, activities: list[ProfilerActivity], **others: Any) -> torch.profiler.profile:
        asked.append(set(activities))
        return torch.profiler.profile(activities=[ProfilerActivity.CPU], **others)

    monkeypatch.setattr(profiler, "supported_activities", lambda: there)
    monkeypatch.setattr(profiler, "profile", on_the_cpu_alone)
    run = Run(tmp_path)
    run.profiler.start(1, command=None)
    run.round(1)
    assert asked == [there]


def test_full_disk_is_named_where_torch_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.profiler.start(1)
    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", lambda *_: None)
    run.round(1)
    assert "could not write its trace" in run.told[-1].error
    assert "bytes of the disk are free" in run.told[-1].error
