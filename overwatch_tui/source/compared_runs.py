"""The runs that are compared: opened under a letter each, and read while they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from esper_overwatch.overwatch_tui.model.curves import ComparedRun
from esper_overwatch.protocol.errors import EsperError

from .curve_readers import CurveReader
from .run_list import ListedRun, MachineRuns

LETTERS = "abcdef"
"""Letters of the run that is watched and of the others."""


@dataclass
class ComparedRuns:
    """The run that is watched and those that it is compared with; none = nothing is compared."""

    readers: list[CurveReader] = field(default_factory=list)
    """That of the watched run first."""
    reads_watched: bool = False
    """True where the terminal, which joined it late, has not all of the watched run."""
    notice: str = ""
    """Message about a run that cannot be read; who shows it empties it."""

    @property
    def watched(self) -> ComparedRun:
        return self.readers[0].run

    @property
    def others(self) -> list[CurveReader]:
        return self.readers[1:]

    def step(self, seconds: float) -> bool:
        """Read for about `seconds`; returns True if something came."""
        has_come = False
        for reader in self.readers[0 if self.reads_watched else 1 :]:
            try:
                has_come |= reader.step(seconds / len(self.readers))
            except EsperError as error:
                words = "is no longer read" if reader.is_over else "is not read for now"
                self.notice = f"{reader.run.name} {words}: {error}"
        return has_come

    def close(self) -> None:
        """End what runs in the background."""
        for reader in self.readers:
            reader.close()


def read_compared(runs: Sequence[tuple[MachineRuns, ListedRun]]) -> list[ComparedRun]:
    """Each run read to its end, before there is a screen: ssh may ask for a passphrase.

    Raises:
        EsperError: too many, one twice, or one that cannot be read.
    """
    readers = _open_readers(runs, once=True)
    try:
        for reader in readers:
            reader.read_whole()
    finally:
        for reader in readers:
            reader.close()
    return [reader.run for reader in readers]


def open_compared(runs: Sequence[tuple[MachineRuns, ListedRun]]) -> ComparedRuns:
    """Compare runs with the first one, which is watched; without others there is nothing to compare.

    Raises:
        EsperError: too many, or one twice.
    """
    if len(runs) < 2:
        return ComparedRuns()
    return ComparedRuns(_open_readers(runs), reads_watched=runs[0][1].live)


def _open_readers(runs: Sequence[tuple[MachineRuns, ListedRun]], *, once: bool = False) -> list[CurveReader]:
    if len(runs) > len(LETTERS):
        raise EsperError(f"{len(runs)} runs: at most {len(LETTERS)} are compared")
    for at, (machine, run) in enumerate(runs):
        if any((one.host, other.id) == (machine.host, run.id) for one, other in runs[:at]):
            raise EsperError(f"run {run.name} is named twice: name the runs that are compared once each")
    return [
        machine.read_curves(run, mark, once=once) for mark, (machine, run) in zip(LETTERS, runs, strict=False)
    ]
