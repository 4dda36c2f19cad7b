"""`esper-daemon policy`: take a policy out of a run, and look at it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.checkpoint_files import (
    CheckpointError,
    best_checkpoint,
    find_checkpoint,
    list_checkpoints,
)

from .options import JSON
from .output import print_lines, print_result

if TYPE_CHECKING:
    from esper_overwatch.trainer.policy.saved_policy import PolicyDescription

CHECKPOINT_SUFFIX = ".pt"


@click.group()
def policy() -> None:
    """Policies as files: `export` one, `show` it; `start --policy FILE` begins with it."""


@policy.command()
@click.argument("source", metavar="RUN|CHECKPOINT")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    metavar="WHICH",
    help="Take it from this one of RUN: best (the default), a tag, or a file; `checkpoints` lists them.",
)
def export(source: str, file: Path, checkpoint: str | None) -> None:
    """Write the policy of RUN, or of a CHECKPOINT's file, into FILE."""
    if file.exists():
        raise FolderError(f"{file} exists; choose another name, or remove it")
    path, run = _find(source, checkpoint)
    from esper_overwatch.trainer.checkpoint import load
    from esper_overwatch.trainer.policy.saved_policy import SavedPolicy

    saved = SavedPolicy.of_checkpoint(load(path), run, __version__, str(path))
    try:
        num_bytes = saved.write(file)
    except OSError as error:
        raise FolderError(f"cannot write {file}: {error.strerror}") from None
    print_lines([f"{file}: policy of {run} after round {saved.about.rounds}, {num_bytes} bytes"])


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
@JSON
def show(file: Path, as_json: bool) -> None:
    """Print what the policy in FILE was trained on, what it fits and how it did on held-out hosts."""
    import msgspec

    from esper_overwatch.trainer.policy.saved_policy import PolicyMismatch, SavedPolicy

    about = SavedPolicy.read(file).about
    if as_json:
        print_result(msgspec.to_builtins(about), as_json)
        return
    try:
        lines = _as_lines(about)
    except (LookupError, TypeError, ValueError, AttributeError):  # of what the file says about itself
        raise PolicyMismatch(f"policy {file} describes itself otherwise; see --json") from None
    print_lines(lines)


def _find(source: str, which: str | None) -> tuple[Path, str]:
    """The checkpoint, and the name of its run."""
    path = Path(source).expanduser()
    if path.suffix == CHECKPOINT_SUFFIX:
        if which is not None:
            raise click.UsageError("--checkpoint chooses one of a RUN")
        folder = path.absolute().parent
        return path, folder.parent.name if folder.name == "checkpoints" else path.name
    run = find_run(source)
    folder = run.path / "checkpoints"
    if which is not None:
        return find_checkpoint(folder, which), run.name
    newest = best_checkpoint(folder) or next(reversed(list_checkpoints(folder)), None)
    if newest is None:
        raise CheckpointError(f"no checkpoint of {run.name} yet")
    return newest.path, run.name


def _as_lines(about: PolicyDescription) -> list[str]:
    """For people."""
    episodes = f"{about.episodes} episodes of {about.episode_epochs} epochs"
    lines = [
        f"run          {about.run} after round {about.rounds}, {episodes}",
        f"trained on   {', '.join(about.tasks)}; hosts {_shape(about)}; reward {about.reward['mode']}",
        f"fits         hosts with {about.slots} slots; blueprints {', '.join(about.blueprints)}",
        f"observes     layout {about.layout}",
        f"exported by  version {about.version}",
    ]
    found = about.evaluation
    if found is None:
        return [*lines, "evaluated    never (evaluation.rounds)"]
    where = f"after round {found['round']} on {found['hosts']} held-out hosts (seed {found['seed']})"
    lines += [
        f"evaluated    {where}",
        f"             return {found['return']:.3f}, test accuracy {100 * found['test_accuracy']:.1f} %, "
        f"{found['added_parameters']:.0f} parameters added",
    ]
    for rival, (mean, low, high) in found["leads"].items():
        limits = "" if low is None else f" ({low:+.3f} to {high:+.3f})"  # of one host there are none
        lines.append(f"             lead over {rival} {mean:+.3f}{limits}")
    return lines


def _shape(about: PolicyDescription) -> str:
    host = about.host
    if host["family"] == "transformer":
        return f"transformer of width {host['width']}"
    return f"{host['family']} {','.join(map(str, host['channels']))}"
