"""Commands to type next about a run."""

from __future__ import annotations


def resume_command(name: str, done: int = 0) -> str:
    """Command that trains a run on.

    Args:
        name: of the run.
        done: its rounds, where all that it was to train are done, so that it needs more; else 0.
    """
    command = f"esper-daemon start --detach --resume {name}"
    return f"{command} --rounds {2 * done}" if done else command


def next_commands(name: str, *, state: str, kind: str, done: int = 0) -> list[str]:
    """Commands to type next about a run, the most useful first.

    Args:
        name: of the run.
        state: as `RunInfo.state` says it.
        kind: of the run.
        done: as `resume_command` has it.
    """
    goes_on = [f"publish({name!r}, resume=True)"] if kind == "published" else [resume_command(name, done)]
    diagnosis = [f"esper-daemon doctor {name}"]
    match state:
        case "DIED":
            return goes_on + diagnosis
        case "FAILED":
            return diagnosis + goes_on
        case "STOPPED" | "COMPLETED":
            return goes_on
    return [f"esper-daemon status {name}"]
