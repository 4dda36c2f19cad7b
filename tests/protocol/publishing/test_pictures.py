"""Pictures and tables that a loop logs: kept, told with a preview, and never in the loop's way."""

from __future__ import annotations

import base64
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch import PublishedRun
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.publishing import pictures

from .test_run import logged
from .test_values import Hostile, anything

Image = pytest.importorskip("PIL.Image", reason="Pillow, of which pictures are, is not installed")
RED, BLUE, BLACK = 196, 21, 16
"""Numbers of xterm's colours."""


def two_colours(width: int, height: int) -> Any:
    """Red at the left, blue at the right."""
    picture = Image.new("RGB", (width, height), "red")
    picture.paste("blue", (width // 2, 0, width, height))
    return picture


def colours_of(preview: ev.ImagePreview | None) -> list[list[int]]:
    assert preview is not None
    numbers = list(zlib.decompress(base64.b64decode(preview.pixels)))
    return [numbers[i : i + preview.columns] for i in range(0, len(numbers), preview.columns)]


def test_picture_is_kept_whole_and_told_with_a_preview(run: PublishedRun) -> None:
    picture = two_colours(200, 100)
    run.log({"eval": {"seen": picture}}, step=7)
    picture.paste("white", (0, 0, 200, 100))
    run.log({"eval/seen": two_colours(3, 2)}, step=7)
    first, second = logged(run, ev.Artifact)
    assert (first.step, first.name, first.kind) == (7, "eval/seen", "image")
    assert Path(first.path).parent == run.path / "pictures"
    assert Path(first.path).stat().st_size == first.bytes
    assert first.path != second.path, "another picture of the same step is another file"
    with Image.open(first.path) as kept:
        assert kept.convert("RGB").tobytes() == two_colours(200, 100).tobytes(), "as it was when logged"
    assert (first.preview.width, first.preview.height) == (200, 100)
    assert colours_of(first.preview) == [[RED] * 40 + [BLUE] * 40] * 40
    assert colours_of(second.preview) == [[RED, BLUE, BLUE]] * 2, "a small one is not enlarged"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "F", "I;16", "HSV"])
def test_picture_of_any_mode_has_a_file(run: PublishedRun, mode: str) -> None:
    run.log(picture=Image.new(mode, (4, 2)))
    (told,) = logged(run, ev.Artifact)
    with Image.open(told.path) as kept:
        assert kept.size == (4, 2)
    assert len(colours_of(told.preview)) == 2


def test_what_is_transparent_is_black_in_a_preview(run: PublishedRun) -> None:
    run.log(picture=Image.new("RGBA", (2, 2), (255, 0, 0, 0)))
    assert colours_of(logged(run, ev.Artifact)[0].preview) == [[BLACK] * 2] * 2


def test_file_that_is_an_image_has_a_preview(run: PublishedRun, tmp_path: Path) -> None:
    two_colours(160, 20).save(tmp_path / "a.png")
    (tmp_path / "broken.jpg").write_bytes(b"not one")
    run.log(a=tmp_path / "a.png", step=1)
    run.artifact(tmp_path / "broken.jpg", step=2)
    run.artifact(tmp_path / "a.png", name="weights", kind="model", step=3)
    told = {file.name: file for file in logged(run, ev.Artifact)}
    assert colours_of(told["a"].preview) == [[RED] * 40 + [BLUE] * 40] * 10
    assert told["broken.jpg"].preview is told["weights"].preview is None


def test_without_pillow_images_are_files_only(
    run: PublishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_colours(4, 4).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    run.log(a=tmp_path / "a.png", array=pictures.ArrayPicture(np.zeros((4, 4)), "HW"), step=1)
    (told,) = logged(run, ev.Artifact)
    assert (told.name, told.preview) == ("a", None)
    assert ["array" in line.message and "PIL" in line.message for line in logged(run, ev.LogLine)] == [True]


def test_picture_that_is_too_large_is_refused(strict_run: PublishedRun) -> None:
    with pytest.raises(PublishError, match=r"picture of 4096x2048.* write it to a file"):
        strict_run.log(big=Image.new("1", (4096, 2048)))


def test_full_folder_leaves_pictures_out(run: PublishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_FOLDER_BYTES", 1)
    for step in range(3):
        run.log(seen=two_colours(4, 4), step=step)
    assert [file.step for file in logged(run, ev.Artifact)] == [0]
    told = [
        line.message for line in logged(run, ev.LogLine) if line.message.startswith("seen logged at step ")
    ]
    assert len(told) == 2


def test_disk_that_hangs_keeps_nothing_else(
    run: PublishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_colours(2, 2).save(file := tmp_path / "file.png")
    begun, answers, save = threading.Event(), threading.Event(), Image.Image.save

    def hang(*args: Any, **named: Any) -> None:
        begun.set()
        assert answers.wait(300)
        save(*args, **named)

    monkeypatch.setattr(Image.Image, "save", hang)
    monkeypatch.setattr("esper_overwatch.protocol.publishing.value_queue.MAX_WAITING_PICTURE_BYTES", 100)
    run.log(seen=two_colours(4, 4), step=0)
    assert begun.wait(300)
    run.log({"waits": two_colours(4, 4), "more": two_colours(4, 4)}, step=0)
    run.log(loss=0.5, rows=[{"a": 1}], file=file, step=1)
    assert not run.flush(0.2), "the picture is waited for"
    journal = (run.path / "events.jsonl").read_text()
    assert '"type":"scalar"' in journal
    assert '"type":"table"' in journal
    assert '"name":"seen"' not in journal
    assert '"name":"file"' in journal, "told without a preview, which there is no room to wait for"
    answers.set()
    assert run.flush(300)
    assert [one.name for one in logged(run, ev.Artifact)] == ["file", "seen", "waits"]
    assert sum(one.count for one in logged(run, ev.TelemetryLost)) == 1, "the third picture"


def test_table_of_dicts_is_told(run: PublishedRun) -> None:
    rows = [
        {"class": "cat", "right": np.int64(3), "share": 0.5},
        {"class": "dog", "other": None, "right": True},
    ]
    run.log(confusion=rows, step=2)
    rows[0]["class"] = "changed"
    (told,) = logged(run, ev.LoggedTable)
    assert (told.step, told.name, told.size) == (2, "confusion", 2)
    assert told.columns == ["class", "right", "share", "other"]
    assert told.rows == [["cat", 3, 0.5, None], ["dog", True, None, None]]


def test_large_table_is_told_by_its_beginning(run: PublishedRun) -> None:
    row = {f"c{column}": "x" * 200 for column in range(30)}
    run.log(big=[row] * 5_000, nan=[{"a": float("nan"), "b": 2**70, "c": [1] * 10_000}])
    big, nan = logged(run, ev.LoggedTable)
    assert (len(big.columns), len(big.rows), big.size) == (20, 100, 5_000)
    assert {cell for row in big.rows for cell in row} == {"x" * 79 + "…"}
    assert nan.rows == [["NaN", str(2**70), "[1, 1, 1, 1, 1, 1, ...]"]]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frame_is_a_table(run: PublishedRun, library: str) -> None:
    frames = pytest.importorskip(library, reason=f"{library}, whose frames are tables, is not installed")
    run.log(frame=frames.DataFrame({"name": ["a", "b"] * 100, "loss": [0.5, 1.0] * 100}), step=1)
    (told,) = logged(run, ev.LoggedTable)
    assert (told.columns, told.size) == (["name", "loss"], 200)
    assert told.rows == [["a", 0.5], ["b", 1.0]] * 50


images = st.builds(
    Image.new,
    st.sampled_from(["1", "L", "P", "RGB", "RGBA", "F", "I;16"]),
    st.tuples(*[st.integers(0, 90)] * 2),
)
cells = st.one_of(anything, st.builds(Hostile), images)
wild_tables = st.lists(
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), cells, max_size=3), max_size=3
)


def test_any_picture_or_table_is_taken_or_left_out(run: PublishedRun) -> None:
    tables, count = 0, 0

    @settings(max_examples=60)
    @given(st.lists(st.one_of(images, wild_tables, st.builds(Hostile)), max_size=3))
    def log(values: list[Any]) -> None:
        nonlocal count, tables
        for value in values:
            run.log({f"v{count}": value})
            count += 1
        tables += sum(isinstance(value, list) and bool(value) for value in values)

    log()
    assert run.flush(300)
    kinds = (ev.Artifact, ev.LoggedTable, ev.Histogram)  # an empty list is an array
    found = {event.name for kind in kinds for event in logged(run, kind)}
    told = " ".join(line.message for line in logged(run, ev.LogLine)).replace(":", " ").split()
    assert {f"v{i}" for i in range(count)} - found <= set(told)
    assert len(found) > 30
    assert tables > 10
