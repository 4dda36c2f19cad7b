"""`replay`, `tail` and `export` over all segments of a run, also while it is written."""

from __future__ import annotations

import builtins
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import Event, encode_event
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.extras import install_command
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, RunInfo, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.trainer.config.schema import Config
from tests.batches import batch_of
from tests.protocol.values import an_event, values_of
from tests.trainer import journals
from tests.trainer.command import esper

pa = pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("tensorboard", reason="the extra `export` is not installed")

EPISODE = 6


def epoch(value: float | None) -> ev.EpochFinished:
    """As a journal of two envs has it, with this value in the first."""
    floats = [value, 0.5]
    return an_event(
        ev.EpochFinished,
        train_loss=floats,
        val_accuracy=floats,
        stage=[[1, 2], [3, 4]],
        contribution=[[None, None]] * 2,
        parameters=[100, 300],
        reward_components={"rent": [0.0, -1.0]},
    )


class Written:
    """A run whose journal is being written, in several segments."""

    def __init__(self, *, keep_bytes: int = 0) -> None:
        self.run = RunFolder.claim("alpha")
        (self.run.path / "config.json").write_bytes(msgspec.json.encode(Config(episode_epochs=EPISODE)))
        self.journal = Journal(self.run.events, JournalLimits(segment_bytes=4000, keep_bytes=keep_bytes))
        self.last: dict[str, int] = {}
        self.lines: list[bytes] = []

    def add(self, event: object, **ctx: Any) -> None:
        spec = ev.spec_of(type(event))
        seq = self.last[spec.stream] = self.last.get(spec.stream, 0) + 1
        batch = batch_of(seq, 10**15 + len(self.lines), ev.Context(**ctx), event)
        self.journal.append([batch])
        self.lines.append(batch.line(0))

    def train(self, rounds: int) -> None:
        for round_ in range(1, rounds + 1):
            self.add(ev.RoundStarted(rounds=rounds), round=round_)
            for done in range(1, EPISODE + 1):
                self.add(epoch(round_ + done / 10), round=round_, epoch=done)
                text = random.Random(done).randbytes(200).hex()
                self.add(ev.LogLine(level="INFO", logger="x", message=text), round=round_, epoch=done)

    def close(self) -> None:
        self.journal.close()
        self.run.release()


def test_replay_gives_a_range_from_all_segments() -> None:
    written = Written()
    written.train(4)
    live = esper("replay", "alpha", "--json")
    assert live.stdout.encode().splitlines() == written.lines
    written.close()
    assert len(written.journal.segments) > 2
    part = esper("replay", "alpha", "--stream", "metric", "--first", "5", "--last", "20", "--json")
    rows = [json.loads(line) for line in part.stdout.splitlines()]
    assert [(row["stream"], row["seq"]) for row in rows] == [("metric", seq) for seq in range(5, 21)]
    some = esper("replay", "alpha", "--type", "round.started", "--json")
    assert [json.loads(line)["ctx"]["round"] for line in some.stdout.splitlines()] == [1, 2, 3, 4]
    text = esper("replay", "alpha", "--stream", "life")
    assert "round.started rounds=4" in text.stdout.splitlines()[-1]
    wrong = esper("replay", "alpha", "--first", "3")
    assert wrong.exit_code == 2
    assert "--stream" in wrong.stderr


def test_replay_of_what_retention_took_names_the_oldest() -> None:
    written = Written(keep_bytes=4000)
    written.train(8)
    written.close()
    oldest = min(event.seq for event in read(written.run.events) if event.stream == "metric")
    assert oldest > 2
    gone = esper("replay", "alpha", "--stream", "metric", "--last", str(oldest - 1))
    assert (gone.exit_code, gone.stdout) == (5, "")
    assert f"the oldest is {oldest}" in gone.stderr
    partly = esper("replay", "alpha", "--stream", "metric", "--first", "2", "--json")
    assert f"metric before {oldest} is no longer held" in partly.stderr
    assert json.loads(partly.stdout.splitlines()[0])["seq"] == oldest


@pytest.mark.parametrize("count", [0, 1, 7, 40, 1000])
def test_tail_reads_on_into_closed_segments(count: int) -> None:
    written = Written()
    written.train(4)
    written.close()
    result = esper("tail", "alpha", "-n", str(count), "--json")
    assert result.stdout.encode().splitlines() == written.lines[max(0, len(written.lines) - count) :]
    typed = esper("tail", "alpha", "-n", "3", "--type", "round.started", "--json")
    assert [json.loads(line)["ctx"]["round"] for line in typed.stdout.splitlines()] == [2, 3, 4]


def test_parquet_holds_every_event_with_typed_columns(tmp_path: Path) -> None:
    written = Written()
    written.train(2)
    written.add(epoch(math.nan), round=3, epoch=1)
    written.add(epoch(None), round=3, epoch=2)
    written.add(ev.CommandDone(id="a", method="pause", result={"x": [1]}, seconds=0.5), env=1)
    result = esper("export", "alpha", "--to", str(tmp_path / "out"), "--format", "parquet", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    numbers = pq.read_table(tmp_path / "out" / "alpha" / "scalars.parquet").to_pylist()
    assert rows == {"round.started": 2, "epoch": 14, "log": 12, "command.done": 1, "scalars": len(numbers)}
    folder = tmp_path / "out" / "alpha"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{t}.parquet" for t in rows)
    accuracy = [(row["step"], row["value"]) for row in numbers if row["tag"] == "epoch/val_accuracy"]
    assert accuracy[7] == (8, pytest.approx((2.2 + 0.5) / 2)), "as TensorBoard has it"
    table = pq.read_table(folder / "epoch.parquet")
    schema = table.schema
    assert schema.field("val_accuracy").type == pa.list_(pa.float64())
    assert schema.field("stage").type == pa.list_(pa.list_(pa.int64()))
    assert schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert schema.metadata[b"run"].decode() == written.run.id
    columns = table.to_pydict()
    assert columns["seq"] == list(range(1, 15))
    assert (columns["ctx_round"][7], columns["ctx_epoch"][7]) == (2, 2)
    assert columns["val_accuracy"][7] == [2.2, 0.5]
    assert math.isnan(columns["val_accuracy"][12][0])
    assert columns["val_accuracy"][13] == [None, 0.5]
    assert columns["contribution"][13] == [[None, None], [None, None]]
    assert columns["reward_components"][0] == [("rent", [0.0, -1.0])]
    done = pq.read_table(folder / "command.done.parquet").to_pylist()
    assert json.loads(done[0]["result"]) == {"x": [1]}
    assert (done[0]["ctx_env"], done[0]["seconds"]) == (1, 0.5)
    written.add(epoch(1.0), round=3, epoch=3)
    again = esper("export", "alpha", "--to", str(tmp_path / "out"), "--format", "parquet", "--json")
    assert json.loads(again.stdout)["rows"]["epoch"] == 15
    written.close()


def test_parquet_folder_holds_one_run_and_nothing_old(tmp_path: Path) -> None:
    from esper_overwatch.trainer.export import parquet

    started, ended = journals.round_started(1), journals.round_finished(1)
    for name, told in {"alpha": [started, ended], "beta": [started]}.items():
        journals.write_run(tmp_path / "home", name, told).release()
    folder = tmp_path / "out" / "alpha"
    words = ("--to", str(tmp_path / "out"), "--format", "parquet")
    assert esper("export", "beta", *words).exit_code == 0
    assert esper("export", "alpha", *words).exit_code == 0
    (folder / "mine.parquet").write_text("of somebody else")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    alpha, beta = find_run("alpha"), find_run("beta")
    with pytest.raises(FolderError, match=f"{folder} holds the export of the run {alpha.id}"):
        parquet.write(read(beta.path / EVENTS_FILE), folder, run=beta)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    parquet.write(iter(list(read(alpha.path / EVENTS_FILE))[:1]), folder, run=alpha)
    assert {path.name for path in folder.iterdir()} == {"round.started.parquet", "mine.parquet"}


@pytest.mark.parametrize("type_", ev.EVENTS)
@settings(max_examples=2)
@given(data=st.data())
def test_every_type_can_be_written(type_: str, data: st.DataObject) -> None:
    import tempfile

    from esper_overwatch.protocol.codec.json_lines import decode_line
    from esper_overwatch.trainer.export import parquet

    event = data.draw(values_of_event(type_))
    line = encode_event(1, 2, ev.Context(), event)
    with tempfile.TemporaryDirectory() as folder:
        claimed = RunFolder.claim("alpha")
        claimed.release()
        parquet.write(iter([decode_line(line)]), Path(folder), run=find_run("alpha"))
        (row,) = pq.read_table(Path(folder) / f"{type_}.parquet").to_pylist()
    assert row["seq"] == 1


def values_of_event(type_: str) -> st.SearchStrategy[Any]:
    import typing

    cls = ev.EVENTS[type_].cls
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values_of(hint) for name, hint in hints.items()})


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    loaded.Reload()
    return {
        tag: [(scalar.step, scalar.value) for scalar in loaded.Scalars(tag)]
        for tag in loaded.Tags()["scalars"]
    }


ROUND = an_event(ev.RoundFinished, accuracy_mean=0.75)
UPDATE = an_event(
    ev.PPOUpdate,
    head_entropy={"op": 0.25, "slot": None},
    explained_variance=None,
    op_fraction={"wait": 1.0},
)
EVALUATION = an_event(
    ev.EvaluationFinished,
    policy="ppo",
    return_mean=0.5,
    tasks={"digits": {"return": 0.25}},
    leads={"fixed": {"mean": 0.125, "low": None, "high": None}},
)


def test_tensorboard_holds_rounds_updates_and_epoch_means(tmp_path: Path) -> None:
    written = Written()
    written.train(2)
    written.add(ROUND, round=2)
    written.add(UPDATE, round=2)
    written.add(EVALUATION, round=2)
    folder = tmp_path / "tb" / "alpha"
    assert esper("export", "alpha", "--to", str(tmp_path / "tb"), "--format", "tensorboard").exit_code == 0
    found = scalars_in(folder)
    assert found["round/accuracy_mean"] == [(2, 0.75)]
    assert found["evaluation/ppo/return_mean"] == [(2, 0.5)]
    assert found["evaluation/ppo/tasks/digits/return"] == [(2, 0.25)]
    assert found["evaluation/ppo/leads/fixed/mean"] == [(2, 0.125)]
    assert "evaluation/ppo/leads/fixed/low" not in found
    assert found["ppo/head_entropy/op"] == [(2, 0.25)]
    assert "ppo/head_entropy/slot" not in found
    assert "ppo/explained_variance" not in found
    assert found["ppo/op_fraction/wait"] == [(2, 1.0)]
    assert [step for step, _ in found["epoch/val_accuracy"]] == list(range(1, 13))
    assert found["epoch/val_accuracy"][7] == (8, pytest.approx((2.2 + 0.5) / 2))
    assert found["epoch/parameters"][0] == (1, 200.0)
    assert found["epoch/reward_components/rent"][0] == (1, -0.5)
    written.add(epoch(math.inf), round=3, epoch=1)
    assert esper("export", "alpha", "--to", str(tmp_path / "tb"), "--format", "tensorboard").exit_code == 0
    assert len(list(folder.iterdir())) == 1, "the earlier file of this run went"
    assert scalars_in(folder)["epoch/val_accuracy"][12] == (13, 0.5), "the mean of what is finite"
    written.close()


@pytest.mark.parametrize(
    ("format_", "library", "extra"),
    [("parquet", "pyarrow", "export"), ("tensorboard", "tensorboard", "export"), ("wandb", "wandb", "wandb")],
)
def test_a_missing_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, library: str, extra: str
) -> None:
    import sys

    Written().close()
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return real(name, *args, **options)

    for name in [
        n
        for n in sys.modules
        if n.startswith((f"esper_overwatch.trainer.export.{format_}", "torch.utils.tensorboard"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    result = esper("export", "alpha", "--to", str(tmp_path / "out"), "--format", format_)
    assert result.exit_code == 9
    assert f"{library} is not installed; install it with: {install_command(extra)}" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    Written().close()
    file = tmp_path / "alpha"
    file.write_text("")
    for folder, told in (
        (tmp_path, f"{file}: it is a file; move it away"),
        (file / "out", f"{file / 'out' / 'alpha'}: Not a directory"),
    ):
        result = esper("export", "alpha", "--to", str(folder), "--format", "parquet")
        assert (result.exit_code, result.stderr) == (10, f"esper-daemon: cannot export to {told}\n")


def test_export_has_no_epoch_twice_and_names_the_boot(tmp_path: Path) -> None:
    told = [
        journals.started("b1"),
        journals.round_started(1),
        *(journals.epoch(1, n) for n in (1, 2, 3)),
        journals.round_finished(1),
        journals.round_started(2),
        *(journals.epoch(2, n) for n in (1, 2)),
        journals.started("b2", resumed_round=1),
        journals.round_started(2),
        *(journals.epoch(2, n) for n in (1, 2, 3)),
        journals.round_finished(2),
    ]
    run = journals.write_run(tmp_path / "home", "alpha", told)
    (run.path / "config.json").write_bytes(msgspec.json.encode(Config(episode_epochs=3)))
    run.release()
    assert esper("export", "alpha", "--to", str(tmp_path), "--format", "parquet").exit_code == 0
    epochs = pq.read_table(tmp_path / "alpha" / "epoch.parquet").to_pylist()
    played = [(row["boot"], row["ctx_round"], row["ctx_epoch"]) for row in epochs]
    assert played == [("b1", 1, n) for n in (1, 2, 3)] + [("b2", 2, n) for n in (1, 2, 3)]
    boots = pq.read_table(tmp_path / "alpha" / "run.started.parquet").to_pylist()
    assert [row["boot"] for row in boots] == ["b1", "b2"]
    assert esper("export", "alpha", "--to", str(tmp_path), "--format", "tensorboard").exit_code == 0
    steps = [step for step, _ in scalars_in(tmp_path / "alpha")["epoch/seconds"]]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_parquet_exports_at_once_leave_whole_files(tmp_path: Path) -> None:
    from esper_overwatch.trainer.export import parquet

    (tmp_path / "alpha").mkdir()
    (tmp_path / "beta").mkdir()
    played = [journals.round_started(1), *(journals.epoch(1, n) for n in (1, 2, 3))]
    for name in ("alpha", "beta"):
        journals.write_run(tmp_path / "home", name, [journals.started(name), *played]).release()
    alpha, beta = find_run("alpha"), find_run("beta")

    def exported_meanwhile(other: RunInfo) -> Iterator[Event]:
        events = list(read(alpha.path / EVENTS_FILE))
        yield from events[:3]
        parquet.write(read(other.path / EVENTS_FILE), tmp_path / other.name, run=other)
        yield from events[3:]

    rows = parquet.write(exported_meanwhile(alpha), tmp_path / "alpha", run=alpha)["rows"]
    assert {path.stem: pq.read_table(path).num_rows for path in (tmp_path / "alpha").iterdir()} == rows
    with pytest.raises(FolderError, match=f"holds the export of the run {beta.id}"):
        parquet.write(exported_meanwhile(beta), tmp_path / "beta", run=alpha)
    owners = {pq.read_schema(path).metadata[b"run"] for path in (tmp_path / "beta").iterdir()}
    assert owners == {beta.id.encode()}, "nothing else is left there"
