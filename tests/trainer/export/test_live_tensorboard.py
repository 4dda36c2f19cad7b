"""Event files that grow with a run, as TensorBoard's own reader has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.client.event_log import open_event_log
from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages.events import Context, LoggedText, spec_of
from esper_overwatch.protocol.runs import RunFolder
from tests.batches import batch_of
from tests.trainer import journals
from tests.trainer.command import esper

pytest.importorskip("tensorboard", reason="the extra `export` is not installed")

from esper_overwatch.trainer.export.live_tensorboard import LiveExport

BEFORE = [
    journals.started("b1"),
    journals.round_started(1),
    *(journals.epoch(1, n) for n in (1, 2, 3)),
    journals.round_finished(1),
    journals.round_started(2),
    *(journals.epoch(2, n, accuracy=0.125) for n in (1, 2)),
]
RESUMED = [
    journals.started("b2", resumed_round=1),
    journals.round_started(2),
    *(journals.epoch(2, n, accuracy=0.75) for n in (1, 2, 3)),
    journals.round_finished(2),
]


class Growing:
    """A run whose journal grows by events that a reader may be given."""

    def __init__(self, home: Path) -> None:
        self.run = RunFolder.claim("alpha", home=home)
        self._journal = Journal(self.run.events)
        self._seq: dict[str, int] = {}

    def add(self, told: list[journals.Told]) -> None:
        for event, ctx in told:
            stream = spec_of(type(event)).stream
            seq = self._seq[stream] = self._seq.get(stream, 0) + 1
            ts = journals.BEGIN + sum(self._seq.values()) * 1_000_000
            self._journal.append([batch_of(seq, ts, ctx, event)])

    def events(self) -> list[Any]:
        return list(read(self.run.events))


@pytest.fixture
def growing(home: Path) -> Iterator[Growing]:
    growing = Growing(home)
    yield growing
    growing.run.release()


@pytest.fixture
def export(growing: Growing, tmp_path: Path) -> Iterator[LiveExport]:
    def open_log() -> Any:
        return open_event_log("alpha", client="test")

    (tmp_path / "tb").mkdir()
    with LiveExport(open_log, tmp_path / "tb", run_id="1234", episode_epochs=3) as export:
        yield export


def load(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    loaded.Reload()
    return loaded


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    loaded = load(folder)
    return {tag: [(s.step, s.value) for s in loaded.Scalars(tag)] for tag in loaded.Tags()["scalars"]}


def test_past_and_present_join_without_a_step_twice(
    growing: Growing, export: LiveExport, tmp_path: Path
) -> None:
    growing.add(BEFORE[:4])
    export.write_past()
    growing.add(BEFORE[4:])
    for event in growing.events():
        export.take(event)
        export.take(event)
    export.close()
    found = scalars_in(tmp_path / "tb")
    assert [step for step, _ in found["epoch/seconds"]] == [1, 2, 3, 4, 5]
    assert found["round/accuracy_mean"] == [(1, 0.5)]


def test_texts_are_written_while_the_run_is_on(growing: Growing, export: LiveExport, tmp_path: Path) -> None:
    said = [LoggedText(step=step, name="note", text=f"text {step}") for step in (1, 2, 3)]
    growing.add([*BEFORE[:2], (said[0], Context())])
    export.write_past()
    growing.add([(said[1], Context()), (said[2], Context())])
    export.take(growing.events()[-1])
    export.close()
    written = load(tmp_path / "tb").Tensors("note/text_summary")
    assert [(one.step, one.tensor_proto.string_val[0]) for one in written] == [
        (1, b"text 1"),
        (2, b"text 2"),
        (3, b"text 3"),
    ]


def test_resumed_boot_replaces_the_epochs_it_plays_again(
    growing: Growing, export: LiveExport, tmp_path: Path
) -> None:
    growing.add(BEFORE)
    export.write_past()
    growing.add(RESUMED)
    for event in growing.events():
        export.take(event)
    export.close()
    found = scalars_in(tmp_path / "tb")
    steps = [step for step, _ in found["epoch/val_accuracy"]]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert found["epoch/val_accuracy"][3][1] == pytest.approx((0.75 + 0.375) / 2)
    assert [step for step, _ in found["round/accuracy_mean"]] == [1, 2]
    assert sum(file.stat().st_size > 0 for file in (tmp_path / "tb").iterdir()) == 1


def test_events_that_were_missed_are_read_from_the_journal(
    growing: Growing, export: LiveExport, tmp_path: Path
) -> None:
    export_begins = BEFORE[:3]
    growing.add(export_begins)
    export.write_past()
    growing.add(BEFORE[3:])
    newest = [event for event in growing.events() if event.stream == "metric"][-1]
    export.take(newest)
    export.take_rest()
    export.close()
    found = scalars_in(tmp_path / "tb")
    assert [step for step, _ in found["epoch/seconds"]] == [1, 2, 3, 4, 5]
    assert found["round/accuracy_mean"] == [(1, 0.5)]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_file_that_somebody_removed_is_an_error(
    growing: Growing, export: LiveExport, tmp_path: Path, is_flushed: bool
) -> None:
    growing.add(BEFORE)
    export.write_past()
    for file in (tmp_path / "tb").iterdir():
        file.unlink()
    growing.add(RESUMED)
    if is_flushed:  # which the writer does by itself each second: it makes the file again, without its head
        export.flush()
    with pytest.raises(FileNotFoundError, match="was removed"):
        export.take(growing.events()[-1])
    export.close()
    assert list((tmp_path / "tb").iterdir()) == []


def test_reader_of_the_older_file_forgets_it(growing: Growing, export: LiveExport, tmp_path: Path) -> None:
    """A TensorBoard that runs has read the older file: the newer one's beginning makes it forget that."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    growing.add(BEFORE)
    export.write_past()
    export.flush()
    running = EventAccumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0})
    running.Reload()
    assert len(running.Scalars("epoch/seconds")) == 5
    growing.add(RESUMED)
    for event in growing.events():
        export.take(event)
    export.flush()
    running.Reload()
    assert [scalar.step for scalar in running.Scalars("epoch/seconds")] == [1, 2, 3, 4, 5, 6]


def test_newer_file_has_the_later_name(growing: Growing, export: LiveExport, tmp_path: Path) -> None:
    """Also within a second where the writer's count goes from 9 to 10, whatever it is at now."""
    growing.add(BEFORE)
    names = []
    for _ in range(12):
        export.write_past()
        names.append(export._file.name)
    assert names == sorted(names)


def test_older_files_of_the_run_do_not_pile_up(growing: Growing, export: LiveExport, tmp_path: Path) -> None:
    growing.add(BEFORE)
    for _ in range(5):
        export.write_past()
    assert len(list((tmp_path / "tb").iterdir())) == 2


def test_damaged_configuration_is_one_line(growing: Growing, tmp_path: Path) -> None:
    growing.add(BEFORE)
    (growing.run.path / "config.json").write_bytes(b"{")
    for words in (["tensorboard"], ["export", "--format", "tensorboard"]):
        done = esper(*words, "alpha", "--to", str(tmp_path / "out"))
        assert (done.exit_code, done.stderr.count("\n")) == (10, 1), done.output
        assert "config.json cannot be read" in done.stderr


def test_events_that_cannot_be_read_again_are_told(
    growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon behind a port ends while its reader is behind: what it had is written, and the rest named."""
    growing.add(BEFORE)
    logs = iter([lambda: open_event_log("alpha", client="test")])

    def open_log() -> Any:
        found = next(logs, None)
        if found is None:
            raise RunNotFound("box: no run alpha")
        return found()

    (tmp_path / "tb").mkdir()
    with LiveExport(open_log, tmp_path / "tb", run_id="1234", episode_epochs=3) as export:
        export.write_past()
        growing.add([journals.epoch(3, 1), journals.epoch(3, 2), journals.epoch(3, 3)])
        export.take([event for event in growing.events() if event.stream == "metric"][-1])
    assert export.missing == ["metric 6..7: box: no run alpha"]
    assert scalars_in(tmp_path / "tb")["epoch/seconds"][-1][0] == 9
