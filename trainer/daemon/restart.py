"""Restarts by torchrun of a run on several ranks: what they continue from, and on which machine."""

from __future__ import annotations

from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.runs import find_run, was_trained
from esper_overwatch.trainer.checkpoint_files import list_checkpoints
from esper_overwatch.trainer.compute.process_group import ProcessGroup, RanksError


def run_progress(name: str | None, resume: str | None) -> list[int]:
    """How far this machine's copy of a run has come, to compare with others'; empty where it has none."""
    try:
        name = name if resume is None else find_run(resume).name
    except RunNotFound:
        return []
    if name is None or not was_trained(name):
        return []
    files = list_checkpoints(find_run(name).path / "checkpoints")
    return [1, *files[-1].order] if files else [1]


def resumed_name(group: ProcessGroup, name: str | None, resume: str | None) -> str | None:
    """The run to resume: the one that is asked for, or after a restart the one that these ranks train.

    Args:
        group: of this attempt.
        name: of a new run.
        resume: the run that is asked for.

    Raises:
        RanksError: the run has no name, or no machine that is left has its folder.
    """
    if group.size > 1 and not (name or resume):
        raise RanksError("a run on several ranks needs a NAME, by which torchrun's restart finds it")
    if resume is not None or name is None or not group.restarted:
        return resume
    if was_trained(name):
        return name
    if group.recorded_home:
        raise RanksError(
            f"run {name} is kept at {group.recorded_home}, and no machine of this attempt has that folder; "
            "let ESPER_HOME of all machines be one shared folder, or bring that machine back"
        )
    return None  # an attempt before failed before it had begun
