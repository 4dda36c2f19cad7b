"""TensorBoard event files of a run; see `scalars` for the tags and axes of numbers.

Histograms, texts and images of a published run have their own names and steps; its tables, `run/notes`,
`run/config` and `run/summary` are texts. Images are read where they lie: one that is gone is named in
a text.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image
from tensorboard.compat.proto import summary_pb2  # type: ignore[import-untyped]
from torch.utils.tensorboard import SummaryWriter

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import (
    Artifact,
    Histogram,
    LoggedTable,
    LoggedText,
    RunConfigured,
    RunStarted,
    Summary,
)
from esper_overwatch.protocol.runs import RunInfo

from .scalars import read_episode_epochs, scalars

MAX_IMAGE_BYTES = 64 << 20


def _tell(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread keeps its error for the writer, whose next call raises it: that is told once."""
    if not type(failure.thread).__module__.startswith("tensorboard."):
        _tell_before(failure)


_tell_before, threading.excepthook = threading.excepthook, _tell


def write(events: Iterator[Event], folder: Path, *, run: RunInfo) -> dict[str, Any]:
    """Write one event file; it replaces that of an earlier export of the run.

    Args:
        folder: exists.
        run: its id is part of the file's name, its configuration has the length of an episode.

    Raises:
        OSError: the folder cannot be written.
    """
    suffix = f".esper-{run.id}"
    count = {"scalars": 0, "histograms": 0, "texts": 0, "images": 0}
    episode = read_episode_epochs(run)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as part:
        with SummaryWriter(part, filename_suffix=suffix) as writer:
            for event in events:
                for tag, value, step in scalars(event, episode):
                    writer.add_scalar(tag, value, step, walltime=event.ts / 1e6)
                    count["scalars"] += 1
                if (kind := write_other(writer, event)) is not None:
                    count[kind] += 1
            writer.flush()  # raises what the disk refused, which its end does not
        (made,) = Path(part).iterdir()
        for old in folder.glob(f"events.out.tfevents.*{suffix}"):
            old.unlink()
        file = Path(shutil.move(made, folder / made.name))
    return {"format": "tensorboard", "to": str(file), **count}


def write_other(writer: SummaryWriter, event: Event) -> str | None:
    """Write what an event holds beside scalars, if it does.

    Returns:
        `histograms`, `texts` or `images`: where it is counted; None for an event of another type.
    """
    data, at = event.data, event.ts / 1e6
    if isinstance(data, Histogram):
        return _write_histogram(writer, data, at)
    if isinstance(data, Artifact) and data.kind == "image":
        return _write_image(writer, data, at)
    for tag, text, step in _texts(data):
        writer.add_text(tag, text, step, walltime=at)
    return "texts" if isinstance(data, LoggedText | LoggedTable | Artifact) else None


def _write_histogram(writer: SummaryWriter, data: Histogram, at: float) -> str | None:
    """Nothing of an array without a finite value."""
    if not data.counts or data.min is None or data.max is None:
        return None
    num, mean, std = sum(data.counts), data.mean or 0.0, data.std or 0.0
    edges, counts = np.linspace(data.min, data.max, len(data.counts) + 1)[1:].tolist(), list(data.counts)
    if data.min == data.max:
        edges, counts = [data.max], [num]
    writer.add_histogram_raw(
        data.name,
        min=data.min,
        max=data.max,
        num=num,
        sum=mean * num,
        sum_squares=(std * std + mean * mean) * num,
        bucket_limits=edges,
        bucket_counts=counts,
        global_step=data.step,
        walltime=at,
    )
    return "histograms"


def _write_image(writer: SummaryWriter, data: Artifact, at: float) -> str:
    """The file as it is; its path where it is no image that can be read."""
    try:
        path = Path(data.path)
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise OSError(f"of {path.stat().st_size} bytes")
        with Image.open(path) as opened:
            width, height = opened.size
        encoded = path.read_bytes()
    except (OSError, ValueError, Image.DecompressionBombError):  # PIL raises these of what it cannot read
        writer.add_text(data.name, data.path, data.step, walltime=at)
        return "texts"
    image = summary_pb2.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
    value = summary_pb2.Summary.Value(tag=data.name, image=image)
    file = writer._get_file_writer()  # type: ignore[no-untyped-call]
    file.add_summary(summary_pb2.Summary(value=[value]), data.step, walltime=at)
    return "images"


def _texts(data: object) -> Iterator[tuple[str, str, int]]:
    """(tag, text, step) of what is a text, or is written as one."""
    if isinstance(data, LoggedText):
        yield data.name, data.text, data.step
    elif isinstance(data, LoggedTable):
        rows = [data.columns, ["---"] * len(data.columns), *data.rows]
        yield data.name, "\n".join(map(_as_row, rows)), data.step
    elif isinstance(data, Artifact):
        yield data.name, data.path, data.step
    elif isinstance(data, RunStarted):
        if data.notes:
            yield "run/notes", data.notes, 0
        if data.config:
            yield "run/config", _as_code(data.config), 0
    elif isinstance(data, RunConfigured):
        yield "run/config", _as_code(data.config), 0
    elif isinstance(data, Summary):
        values = {name: each.last for name, each in data.metrics.items()} | data.numbers | data.texts
        yield "run/summary", _as_code(values), data.step


def _as_row(cells: Sequence[object]) -> str:
    """A row of a table in Markdown."""
    texts = ["" if cell is None else " ".join(str(cell).split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(texts)} |"


def _as_code(value: Any) -> str:
    """A block of JSON, as TensorBoard's Markdown has it."""
    text = json.dumps(msgspec.to_builtins(value), indent=2, default=str)
    return "\n".join(f"    {line}" for line in text.splitlines())
