"""The journal holds and viewers see what a loop logs; what cannot be logged is refused at once."""

from __future__ import annotations

import math
import os
import threading
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from esper_overwatch import PublishedRun, connect
from esper_overwatch.protocol.errors import BadName, NameTaken, PublishError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader

from .conftest import Publish


def logged(run: PublishedRun, kind: type) -> list[Any]:
    """Events of one class in the journal, after the run's end."""
    run.finish()
    return [event.data for event in read(run.path / "events.jsonl") if type(event.data) is kind]


def test_numbers_of_a_step_are_one_event(run: PublishedRun) -> None:
    run.log(step=3, loss=0.5, accuracy=1)
    run.log({"env/3/loss": np.float32(0.25), "env": {4: {"loss": True}}}, step=np.int64(4))
    run.log({"loss": 0.4})
    assert [(e.step, e.values) for e in logged(run, ev.Scalars)] == [
        (3, {"loss": 0.5, "accuracy": 1.0}),
        (4, {"env/3/loss": 0.25, "env/4/loss": 1.0}),
        (5, {"loss": 0.4}),
    ]


def test_callers_dict_is_not_kept(run: PublishedRun) -> None:
    values = {"loss": 1.0}
    array = np.zeros(10)
    for step in range(2):
        run.log(values, step=step)
        run.log(weights=array, step=step)
        values["loss"] = 2.0
        array += 1.0
    assert [e.values for e in logged(run, ev.Scalars)] == [{"loss": 1.0}, {"loss": 2.0}]
    assert [e.max for e in logged(run, ev.Histogram)] == [0.0, 1.0]


def test_nan_and_infinities_are_told_as_such(run: PublishedRun) -> None:
    run.log(step=0, loss=math.nan, bound=math.inf)
    run.log(step=1, loss=1.0, huge=10**400)
    first, second = logged(run, ev.Scalars)
    assert math.isnan(first.values["loss"])
    assert first.values["bound"] == math.inf
    assert second.values["huge"] == math.inf
    raw = (run.path / "events.jsonl").read_bytes()
    assert b'"values":{"loss":"NaN","bound":"Infinity"}' in raw


class Unreadable(float):
    """A number that fails when the I/O thread reads it."""

    def __float__(self) -> float:
        raise RuntimeError("lost its device")


def test_value_that_cannot_be_read_costs_only_itself(run: PublishedRun) -> None:
    for step in range(3):  # the second and third pass without a look
        run.log(step=step, loss=Unreadable(step), other=1.0)
        run.log(step=step, fine=Fraction(10) ** 400)
    assert [e.values for e in logged(run, ev.Scalars)] == [{"fine": math.inf}] * 3
    assert [line.message for line in logged(run, ev.LogLine)] == [
        f"a value logged at step {step} was left out: lost its device" for step in range(3)
    ]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"": 1}, "not a name"),
        ({"a//b": 1}, "not a name"),
        ({"/a": 1}, "not a name"),
        ({"a\nb": 1}, "not a name"),
        ({"x" * 129: 1}, "not a name"),
        ({3: 1}, "not a name"),
        ({"loss": None}, "NoneType"),
        ({"loss": 1j}, "complex"),
        ({"loss": np.zeros(3, complex)}, "complex128"),
        ({"loss": np.array(["a", "b"])}, "must be of numbers"),
        ({"loss": np.array(["a"])}, "cannot be logged"),
        ({"loss": np.array(None)}, "cannot be logged"),
        ({"loss": None}, "loss: a value of type NoneType cannot be logged"),
        ({"loss": [1, "a"]}, "cannot be logged"),
        ({"loss": object()}, "object"),
        ({"loss": b"1"}, "bytes"),
        ({"text": "x" * 65_537}, "65537 characters"),
        ({"file": Path("/nowhere/at/all.png")}, "No such file"),
        ({"file": Path("/tmp")}, "not a file"),
    ],
)
def test_what_cannot_be_logged_is_refused_whole(strict_run: PublishedRun, values: Any, part: str) -> None:
    run = strict_run
    with pytest.raises(PublishError, match=part) as refusal:
        run.log({"fine": 1.0, **values}, step=0)
    assert "\n" not in str(refusal.value)
    assert logged(run, ev.Scalars) == []


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, 2**63])
def test_steps_are_whole_numbers_from_zero(strict_run: PublishedRun, step: Any) -> None:
    run = strict_run
    for _name in range(2):  # new at first, then known
        with pytest.raises(PublishError, match="whole number"):
            run.log(step=step, loss=1.0)
        run.log(step=0, loss=1.0)
    assert run.step == 0


def test_steps_end_at_the_largest_integer(strict_run: PublishedRun) -> None:
    run = strict_run
    run.log(step=2**63 - 2, loss=1.0)
    run.log(loss=2.0)
    with pytest.raises(PublishError, match="whole number"):
        run.log(loss=3.0)
    run.log(step=5, loss=4.0)
    assert [e.step for e in logged(run, ev.Scalars)] == [2**63 - 2, 2**63 - 1, 5]


def test_names_are_bounded(strict_run: PublishedRun) -> None:
    run = strict_run
    run.log({f"m{i}": i for i in range(10_000)}, step=0)
    with pytest.raises(PublishError, match="10000"):
        run.log(one_more=1.0)
    run.log(m5=1.0)


def test_arrays_texts_and_files_have_events(run: PublishedRun, tmp_path: Path) -> None:
    (tmp_path / "shot.PNG").write_bytes(b"abc")
    run.log(
        {
            "weights": np.arange(100_000),
            "rows": [[1, 2], [3, math.nan]],
            "note": "é",
            "shot": tmp_path / "shot.PNG",
        },
        step=7,
    )
    run.artifact(tmp_path / "shot.PNG", name="model/best", kind="model", digest=True)
    weights, rows = logged(run, ev.Histogram)
    assert (weights.size, weights.sampled, weights.nonfinite) == (100_000, 14_286, 0)
    assert (weights.min, sum(weights.counts)) == (0.0, 14_286)
    assert abs(weights.mean - 50_000) < 10
    assert (rows.size, rows.nonfinite, rows.mean) == (4, 1, 2.0)
    (text,) = logged(run, ev.LoggedText)
    assert (text.step, text.name, text.text) == (7, "note", "é")
    model, shot = sorted(logged(run, ev.Artifact), key=lambda file: file.name)
    assert (shot.kind, shot.bytes, shot.digest, shot.path) == ("image", 3, None, str(tmp_path / "shot.PNG"))
    assert (model.name, model.kind, model.step) == ("model/best", "model", 7)
    assert model.digest.startswith("blake2b:bddd813c634239723171ef3fee98579b")


@pytest.mark.slow  # loads torch
def test_torch_tensors_are_numbers_and_arrays(run: PublishedRun) -> None:
    torch = pytest.importorskip("torch")
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    run.log(step=0, loss=loss, grad=torch.ones(2, 3, dtype=torch.bfloat16), half=torch.tensor(0.5).half())
    assert logged(run, ev.Scalars)[0].values == {"loss": 6.0, "half": 0.5}
    assert logged(run, ev.Histogram)[0].size == 6


def test_summary_is_kept_and_set_by_hand(strict_run: PublishedRun) -> None:
    run = strict_run
    for step, loss in enumerate([3.0, 1.0, math.nan, 2.0]):
        run.log(step=step, loss=loss)
    run.summary["best"] = 0.9
    run.summary["verdict"] = "good"
    with pytest.raises(PublishError, match="number or text"):
        run.summary["bad"] = [1, 2]
    summary = logged(run, ev.Summary)[-1]
    loss = summary.metrics["loss"]
    assert (loss.step, loss.last, loss.count, loss.nonfinite) == (3, 2.0, 4, 1)
    assert (loss.min, loss.max, loss.mean) == (1.0, 3.0, 2.0)
    assert (summary.numbers, summary.texts) == ({"best": 0.9}, {"verdict": "good"})
    assert run.summary["loss"] == 2.0
    assert run.summary["best"] == 0.9


def test_late_viewer_gets_the_summary_and_new_values(
    run: PublishedRun, reader: Callable[..., Reader]
) -> None:
    for step in range(500):
        run.log(step=step, loss=1.0 / (step + 1))
    with connect("loop") as client:
        assert client.hello()["kind"] == "published"
    one = reader("loop")
    one.read(lambda: any(isinstance(e.data, ev.Scalars) and e.data.step == 499 for e in one.events))
    one.read(lambda: any(isinstance(e.data, ev.Summary) for e in one.events))
    run.log(step=500, loss=9.0)
    one.read(lambda: any(isinstance(e.data, ev.Scalars) and e.data.step == 500 for e in one.events))
    started = next(e.data for e in one.events if isinstance(e.data, ev.RunStarted))
    assert (started.kind, started.name) == ("published", "loop")


def test_configuration_tags_and_notes_are_told(start_run: Publish) -> None:
    config = {"lr": 3e-4, "layers": [64, np.int64(64)], "env": {"id": "CartPole-v1"}}
    run = start_run("told", config=config, tags=["ppo", "try"], notes="first try")
    run.log(step=2, loss=1.0)
    with connect("told") as client:
        hello, status = client.hello(), client.status()
    assert hello["config"] == {"lr": 3e-4, "layers": [64, 64], "env": {"id": "CartPole-v1"}}
    assert (status["kind"], status["tags"], status["notes"]) == ("published", ["ppo", "try"], "first try")
    assert status["step"] == 2
    (started,) = logged(run, ev.RunStarted)
    assert (started.tags, started.notes, started.config["lr"]) == (["ppo", "try"], "first try", 3e-4)
    assert find_run("told").kind == "published"


def test_what_it_runs_is_told_once(run: PublishedRun) -> None:
    run.finish()
    (told,) = logged(run, ev.RunProvenance)
    assert told.folder == os.getcwd()
    assert told.packages["esper-overwatch"]


def test_snapshot_lacks_what_the_run_runs(run: PublishedRun) -> None:
    run._provenance.close()  # type: ignore[union-attr]
    assert run.flush()
    with connect("loop") as client:
        types = {event.type for event in client.snapshot(("life",))}
    assert "run.started" in types
    assert "run.provenance" not in types


def test_keys_of_a_nested_configuration_become_text(start_run: Publish) -> None:
    run = start_run("keyed", config={"lr": {0: 0.1, np.int64(100): 0.01, 0.5: 1, True: 2, None: [{3: 4}]}})
    told = {"lr": {"0": 0.1, "100": 0.01, "0.5": 1, "true": 2, "null": [{"3": 4}]}}
    with connect("keyed") as client:
        assert client.hello()["config"] == told
    assert [event.config for event in logged(run, ev.RunStarted)] == [told]


@pytest.mark.parametrize(
    "bad",
    [
        {"config": {"a": object()}},
        {"tags": "word"},
        {"tags": [""]},
        {"config": {"a": {1, 2}}},
        {"config": {"entropy": 2**100}},
        {"config": {"a": [{"b": -(2**63) - 1}]}},
        {"config": {"a": {(1, 2): 3}}},
    ],
)
def test_bad_description_leaves_the_name_free(start_run: Publish, bad: dict[str, Any]) -> None:
    with pytest.raises(PublishError):
        start_run("fresh", strict=True, **bad)
    start_run("fresh", strict=True)


def test_name_of_a_live_or_known_run_is_taken(start_run: Publish) -> None:
    run = start_run("mine")
    with pytest.raises(NameTaken, match="held by pid"):
        start_run("mine", strict=True)
    with pytest.raises(BadName):
        start_run("../mine", strict=True)
    run.log(step=41, loss=1.0)
    run.finish()
    with pytest.raises(NameTaken, match="resume=True"):
        start_run("mine", strict=True)
    again = start_run("mine", resume=True)
    assert again.step == 41
    again.log(loss=0.0)
    again.summary["note"] = "two boots"
    assert [(e.step, e.values["loss"]) for e in logged(again, ev.Scalars)] == [(41, 1.0), (42, 0.0)]
    last = logged(again, ev.Summary)[-1].metrics["loss"]
    assert (last.count, last.min, last.max) == (2, 0.0, 1.0)


def test_name_that_is_taken_or_unfit_becomes_another(
    start_run: Publish, start: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    start("trained").close()
    assert [start_run(name).name for name in ("mine", "mine", "trained")] == ["mine", "mine-2", "trained-2"]
    assert start_run("proj/run 1").name == "proj-run-1"
    assert start_run("é").name == "run"
    assert len(start_run("x" * 80).name) <= 64
    assert "'mine' is taken: this one is published as mine-2" in caplog.text
    assert "'proj/run 1' is not a name for a run: this one is published as proj-run-1" in caplog.text


def test_log_leaves_out_what_cannot_be_published(run: PublishedRun, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(3):
        run.log(
            {"loss": 0.5, "grad_norm": None, "a//b": 1, "bad": object(), "file": Path("/none")}, step=step
        )
    run.mark("")
    run.artifact("/nowhere")
    run.summary["what"] = [1, 2]
    run.log(5)  # type: ignore[arg-type]
    run.finish()
    run.log(loss=1.0)
    run.log(loss=2.0)
    assert [e.values for e in logged(run, ev.Scalars)] == [{"loss": 0.5, "a/b": 1}] * 3
    told = [line.message for line in logged(run, ev.LogLine)]
    assert all(line.startswith("not published as given: ") for line in told)
    once = [line for line in told if not line.endswith(" times)")]
    assert len(once) == len(set(once)) == 8
    assert any("NoneType" in line for line in once)
    assert sum(line.endswith("(3 times)") for line in told) == 4, "grad_norm, a//b, bad, file"
    assert caplog.text.count("has ended") == 1


@pytest.mark.parametrize(
    ("step", "at"),
    [(10.0, 10), (np.float32(2.5), 2), (-3, 0), (math.nan, 0), ("x", 0), (True, 1), (2**70, 0)],
)
def test_step_of_any_kind_is_made_fit(run: PublishedRun, step: Any, at: int) -> None:
    run.log(step=step, loss=1.0)
    assert [e.step for e in logged(run, ev.Scalars)] == [at]


def test_one_element_is_a_number_whatever_its_shape(run: PublishedRun) -> None:
    values = [np.array([0.5]), np.full((1, 1), 0.5, np.float32), [0.5], [[0.5]], (np.array([0.5]),)]
    run.log({f"v{i}": value for i, value in enumerate(values)})
    run.summary["best"] = np.array([0.5])
    assert logged(run, ev.Scalars)[0].values == {f"v{i}": 0.5 for i in range(5)}
    assert logged(run, ev.Histogram) == []
    assert run.summary["best"] == 0.5


class Held(NamedTuple):
    path: Path


class Model:
    """As pydantic's."""

    def model_dump(self) -> dict[str, Any]:
        return {"width": 8}


@dataclass
class Settings:
    """As a user's."""

    rate: float
    device: Any
    _cache: int = 0


def test_configuration_may_be_of_any_kind(start_run: Publish) -> None:
    dtype = np.dtype("float32")
    config = Namespace(out=Path("/x"), opt=Settings(0.1, dtype), sizes={3}, big=2**100, held=Held(Path("/y")))
    config.model = Model()
    run = start_run("any", config=config, tags="word", notes=7)
    (started,) = logged(run, ev.RunStarted)
    assert started.config == {
        "out": "/x",
        "opt": {"rate": 0.1, "device": "float32"},
        "sizes": [3],
        "big": str(2**100),
        "held": ["/y"],
        "model": {"width": 8},
    }
    assert (started.tags, started.notes) == (["word"], "7")


def test_training_and_published_run_do_not_mix(start_run: Publish, start: Callable[..., Server]) -> None:
    start("trained").close()
    with pytest.raises(NameTaken, match="held by"):
        start_run("trained", resume=True)
    run = start_run("published")
    run.finish()
    with pytest.raises(NameTaken, match="is a published run"):
        RunFolder.claim("published")


def test_log_after_finish_is_refused(strict_run: PublishedRun) -> None:
    run = strict_run
    run.log(loss=1.0)
    run.finish()
    run.finish()
    for use in (
        lambda: run.log(loss=1.0),
        lambda: run.log(new=1.0),
        lambda: run.log(),
        lambda: run.log({}),
        lambda: run.log(step=7),
        lambda: run.summary.__setitem__("best", 1.0),
        lambda: run.mark("x"),
        lambda: run.artifact("/etc/hostname"),
        lambda: run.command("x"),
    ):
        with pytest.raises(PublishError, match="has ended"):
            use()
    assert run.step == 0
    assert run.asked("stop") is None
    run.pause_point()


def test_exception_is_told_with_its_traceback(start_run: Publish) -> None:
    run = start_run("failing")

    def fail() -> None:
        with run:
            run.log(loss=1 / 0)

    with pytest.raises(ZeroDivisionError):
        fail()
    (stopped,) = logged(run, ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (11, "ZeroDivisionError: division by zero")
    (line,) = logged(run, ev.LogLine)
    assert "loss=1 / 0" in line.traceback
    assert find_run("failing").state == "FAILED"


EXIT_CODES = {
    "true": (True, 1),
    "false": (False, 0),
    "wraps-to-zero": (256, 0),
    "wraps": (259, 3),
    "negative": (-1, 255),
    "over-64-bits": (2**70, 255),
    "float": (0.0, 1),
    "text": ("no data", 1),
}


@pytest.mark.parametrize("name", EXIT_CODES)
def test_exit_code_is_the_status_of_the_process(start_run: Publish, name: str) -> None:
    code, status = EXIT_CODES[name]
    run = start_run()
    run.finish(SystemExit(code))
    (stopped,) = logged(run, ev.RunStopped)
    assert stopped.exit_code == status
    assert (stopped.reason, stopped.error) == (
        ("failed", f"SystemExit: {code}") if status else ("finished", None)
    )


def test_threads_may_log_at_once(run: PublishedRun) -> None:
    def work(number: int) -> None:
        for step in range(300):
            run.log({f"worker/{number}": float(step)}, step=step)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen: dict[str, list[float]] = {}
    for event in logged(run, ev.Scalars):
        for name, value in event.values.items():
            seen.setdefault(name, []).append(value)
    assert seen == {f"worker/{i}": [float(step) for step in range(300)] for i in range(8)}


def test_large_values_are_bounded_and_counted(run: PublishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.publishing.value_queue.MAX_WAITING_BYTES", 4 * 65_536)
    for step in range(2000):
        run.log(step=step, text="x" * 65_536)
    run.log(step=2000, text="last")
    lost = sum(event.count for event in logged(run, ev.TelemetryLost) if event.stream == "log")
    texts = logged(run, ev.LoggedText)
    assert lost + len(texts) == 2001
    assert lost > 0


def test_more_values_than_names_are_cut(run: PublishedRun, caplog: pytest.LogCaptureFixture) -> None:
    run.log({f"m{n}": n for n in range(10_500)}, step=0)
    assert "10500 values in one log, of at most 10000" in caplog.text
    assert [len(e.values) for e in logged(run, ev.Scalars)] == [10_000]


def test_mark_is_on_the_timeline(strict_run: PublishedRun) -> None:
    run = strict_run
    for text in ("learning rate halved", 5):
        run.mark(text)  # type: ignore[arg-type]
    with pytest.raises(PublishError, match="characters"):
        run.mark("")
    assert [mark.text for mark in logged(run, ev.Mark)] == ["learning rate halved", "5"]


def test_run_json_of_earlier_versions_is_a_training(run: PublishedRun) -> None:
    path = run.path / "run.json"
    identity = msgspec.json.decode(path.read_bytes())
    assert identity.pop("kind") == "published"
    run.finish()
    path.write_bytes(msgspec.json.encode(identity))
    assert find_run("loop").kind == "training"
