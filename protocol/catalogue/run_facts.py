"""What a run is known by, from its journal: configuration, what it runs, and what has come of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import FolderError, WireError
from esper_overwatch.protocol.journal.line_files import HEAD_BYTES
from esper_overwatch.protocol.journal.reader import lines_newest_first, removed_boots
from esper_overwatch.protocol.messages.events import (
    RoundFinished,
    RunConfigured,
    RunProvenance,
    RunRewound,
    RunStarted,
    Scalars,
    Summary,
)
from esper_overwatch.protocol.runs import RunInfo
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

_WANTED = re.compile(
    rb'"type":"(?:run\.started|run\.config|run\.provenance|run\.rewound|round\.finished|scalar|summary)"'
)


class RunFacts(NamedTuple):
    """The newest boot of a run; its results are the newest of all boots."""

    run: RunInfo
    started: RunStarted
    found: JournalFacts


def read_run_facts(run: RunInfo) -> RunFacts:
    """Read a run's journal from its newest event back to where all is known.

    Raises:
        FolderError: it holds no beginning of a boot.
    """
    found = read_journal_facts(run.path / EVENTS_FILE)
    if found.started is None:
        raise FolderError(
            f"run {run.name} has no event of a start in {run.path}; what is known of it: "
            f"esper-daemon doctor {run.name}"
        )
    return RunFacts(run, found.started, found)


def read_journal_facts(journal: Path, *, known: str = "") -> JournalFacts:
    """Read a journal from its newest line back to where all is known.

    Args:
        journal: path of `events.jsonl`.
        known: `newest` of an earlier reading: what is older than that line is left out.
    """
    found = JournalFacts()
    for line in lines_newest_first(journal):
        if not found.newest or known:
            mark = _mark(line)
            found.newest = found.newest or mark
            if mark == known:
                found.goes_on = True
                return found
        if _WANTED.search(line, 0, HEAD_BYTES) is None:
            continue
        try:
            found.take(decode_line(line))
        except WireError:
            continue
        if found.is_complete:
            break
    if found.started is None:
        with suppress(FolderError):
            found.take_removed(journal)
    return found


def _mark(line: bytes) -> str:
    """Tells a line from all others, of those that a lost end of the journal had, too."""
    return blake2b(line, digest_size=12).hexdigest()


class JournalFacts:
    """Findings of a walk from the newest event to older ones."""

    def __init__(self) -> None:
        self.newest = ""
        """Stands for the newest line; empty where there is none."""
        self.goes_on = False
        """True if the walk ended at the line that was known."""
        self.started: RunStarted | None = None
        self.config: dict[str, Any] | None = None
        """Of the newest boot, where it has changed it after its start."""
        self.provenance: RunProvenance | None = None
        """None of a boot of an older version, or that ended at once."""
        self.round: int | None = None
        """The last finished round of a training."""
        self.finished: RoundFinished | None = None
        self.values: dict[str, float] = {}
        """Of a published run, the last value of each metric, and numbers set by hand."""
        self.texts: dict[str, str] = {}
        """Of the same, texts set by hand."""
        self.has_summary = False
        """True if nothing older adds to `values` and `texts`."""
        self.rewound: list[RunRewound] = []
        """Of later boots: what they play again is void."""

    @property
    def is_complete(self) -> bool:
        """True where nothing older is of interest: results may be of an earlier boot."""
        return self.started is not None and (self.finished is not None or self.has_summary)

    def take(self, event: Event) -> None:
        """Look at the next older event."""
        match event.data:
            case RunConfigured() if self.started is None and self.config is None:
                self.config = event.data.config
            case RunStarted() if self.started is None:
                config = event.data.config if self.config is None else self.config
                self.started = replace(event.data, config=config)
            case RunProvenance() if self.started is None and self.provenance is None:
                self.provenance = event.data
            case RunRewound():
                self.rewound.append(event.data)
            case RoundFinished() if self.finished is None and not self._is_void(event):
                self.finished, self.round = event.data, event.ctx.round
            case Scalars() if not self.has_summary:
                self.values = {**event.data.values, **self.values}
            case Summary() if not self.has_summary:
                self.has_summary = True
                last = {name: metric.last for name, metric in event.data.metrics.items()}
                self.values = {**last, **event.data.numbers, **self.values}
                self.texts = event.data.texts

    def _is_void(self, event: Event) -> bool:
        return any(one.voids(event.ctx.round, event.ctx.epoch, is_end=True) for one in self.rewound)

    def take_removed(self, journal: Path) -> None:
        """Take how the newest boot began, where retention has removed that."""
        part = removed_boots(journal)
        if part is None:
            return
        for event in part.events(lambda *_: None):
            if isinstance(event.data, RunStarted):
                self.started, self.provenance = event.data, None
            elif isinstance(event.data, RunProvenance):
                self.provenance = event.data


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a configuration by their dotted names; lists are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves
