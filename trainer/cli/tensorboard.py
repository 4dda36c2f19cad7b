"""`esper-daemon tensorboard`: a run's scalars as TensorBoard event files, while it trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_overwatch.protocol.client.event_log import open_event_log
from esper_overwatch.protocol.client.sources import make_target_source
from esper_overwatch.protocol.errors import (
    INTERRUPTED_EXIT,
    FolderError,
    RunNotFound,
    WireError,
)
from esper_overwatch.protocol.messages.events import RunStarted
from esper_overwatch.protocol.runs import find_run

from .options import JSON, RUN
from .output import exit_on_damage, print_note, print_result
from .run_argument import CLIENT_NAME, RunArgument

if TYPE_CHECKING:
    from esper_overwatch.trainer.export.live_tensorboard import LiveExport


@dataclass(frozen=True)
class _Followed:
    """The run that is followed."""

    address: str
    """Its name on this machine, or where another machine has it."""
    id: str
    name: str
    episode_epochs: int
    is_local: bool

    def is_held(self) -> bool:
        """True if a process on this machine holds it."""
        return self.is_local and find_run(self.address).is_live


@click.command()
@RUN
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Into this folder; tensorboard/RUN by default.",
)
@JSON
def tensorboard(run: RunArgument, folder: Path | None, as_json: bool) -> None:
    """Write TensorBoard event files of RUN as it trains, until it ends.

    What the journal holds is written first. A run that is killed is waited for; Ctrl-C ends the command with
    exit code 130, and what was written is complete.
    """
    from esper_overwatch.trainer.export.live_tensorboard import LiveExport, follow

    followed = _find(run)
    folder = folder or Path("tensorboard") / followed.name
    open_log = partial(open_event_log, followed.address, client=CLIENT_NAME, remote_daemon=run.remote_daemon)
    interrupted = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with LiveExport(
            open_log, folder, run_id=followed.id, episode_epochs=followed.episode_epochs
        ) as export:
            try:
                if followed.is_local and not followed.is_held():
                    export.write_past()
                else:
                    print_note(f"following {followed.name}; to see it: tensorboard --logdir {folder}")
                    _follow(follow, export, followed, run)
            except KeyboardInterrupt:
                interrupted = True
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror or error}") from None
    print_result({"run": followed.name, "to": str(folder), "scalars": export.count}, as_json)
    for line in export.missing:
        print_note(f"missing: {line}")
    exit_on_damage(export.damage)
    if export.missing:
        raise SystemExit(WireError.exit_code)
    if interrupted:
        raise SystemExit(INTERRUPTED_EXIT)


def _follow(follow: Callable[..., None], export: LiveExport, followed: _Followed, run: RunArgument) -> None:
    """Keep the export up with the run until it ends."""
    with closing(make_target_source(followed.address, remote_daemon=run.remote_daemon)) as source:
        follow(
            export,
            source,
            client=CLIENT_NAME,
            is_held=followed.is_held,
            on_lost=lambda why: print_note(f"{followed.name}: {why}; waiting for it"),
        )


def _find(run: RunArgument) -> _Followed:
    """The run meant: live or ended on this machine, live on another.

    Raises:
        EsperError: it is not there, or cannot be reached.
    """
    from esper_overwatch.trainer.export.scalars import read_episode_epochs

    if run.address is None or not run.address.startswith(("tcp://", "ssh://")):
        info = find_run(run.address)
        return _Followed(info.name, info.id, info.name, read_episode_epochs(info), is_local=True)
    with run.connect() as client:
        for event in client.snapshot(("life",)):
            started = event.data
            if isinstance(started, RunStarted):
                return _Followed(
                    run.address, started.run, started.name, started.episode_epochs, is_local=False
                )
    raise RunNotFound(f"{run.address} has not begun to train; try again")
