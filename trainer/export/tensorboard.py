"""TensorBoard event files of a run's scalars; see `scalars` for their tags and axes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.runs import RunInfo

from .scalars import read_episode_epochs, scalars


def write(events: Iterator[Event], folder: Path, *, run: RunInfo) -> dict[str, Any]:
    """Write one event file; it replaces that of an earlier export of the run.

    Args:
        folder: exists.
        run: its id is part of the file's name, its configuration has the length of an episode.

    Raises:
        OSError: the folder cannot be written.
    """
    suffix = f".esper-{run.id}"
    count, episode = 0, read_episode_epochs(run)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as part:
        with SummaryWriter(part, filename_suffix=suffix) as writer:
            for event in events:
                for tag, value, step in scalars(event, episode):
                    writer.add_scalar(tag, value, step, walltime=event.ts / 1e6)
                    count += 1
        (made,) = Path(part).iterdir()
        for old in folder.glob(f"events.out.tfevents.*{suffix}"):
            old.unlink()
        file = Path(shutil.move(made, folder / made.name))
    return {"format": "tensorboard", "to": str(file), "scalars": count}
