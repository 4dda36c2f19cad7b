"""A run as the catalogue has it: what is read from its folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from esper_overwatch.protocol.codec.json_lines import plain
from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.journal.overview import RunOverview
from esper_overwatch.protocol.runs import LOCK_FILE, RunInfo
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .about import read_about
from .run_facts import JournalFacts, flatten, read_journal_facts

logger = logging.getLogger(__name__)

_PARTS = (EVENTS_FILE, "segments", "checkpoints")
RACY_NANOSECONDS = 2_000_000_000
"""A file that was changed less long before the look may change once more without another time."""


class OwnWords(Struct, frozen=True, kw_only=True):
    """What the newest boot says of the run itself, and how far its journal was read."""

    newest: str = ""
    """See `JournalFacts.newest`."""
    tags: tuple[str, ...] = ()
    notes: str = ""


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run in the catalogue; times are microseconds."""

    name: str
    id: str
    kind: str
    live: bool
    pid: int | None
    state: str
    """See `RunInfo.state`."""
    stopped_by: str
    created: int
    ended: int | None
    """Time of the last event of a run that has ended."""
    tags: list[str]
    notes: str
    project: str
    parent: str
    """See `RunAbout.parent`."""
    config: dict[str, Any]
    """Of the newest boot; nested ones by dotted names."""
    summary: dict[str, Any]
    """Last values: of a training `round`, `return`, `accuracy`, `best_accuracy`; else what was logged."""
    commit: str
    dirty: bool | None
    bytes: int
    """Of its journal and its checkpoints."""
    overview: RunOverview | None
    damage: str = ""
    """What of its files cannot be read; empty = all that was looked at could."""
    own: OwnWords = field(default_factory=OwnWords)


def fingerprint(folder: Path) -> tuple[str, int] | None:
    """Changes with all that an entry is read from, and when that was last changed; None for no folder.

    A life of the run that begins or ends makes or removes files in its folder, and writes its lock; what
    users write replaces a file there. A run that is killed leaves no trace: whether one lives says its lock.
    """
    try:
        stats = [folder.stat()]
    except OSError:
        return None
    for name in (LOCK_FILE, *_PARTS):
        with suppress(OSError):
            stats.append((folder / name).stat())
    words = [f"{one.st_ino}.{one.st_size}.{one.st_mtime_ns}" for one in stats]
    return " ".join(words), max(one.st_mtime_ns for one in stats)


def read_entry(run: RunInfo, kept: RunEntry | None) -> RunEntry:
    """Read a run's folder.

    Args:
        run: as seen at this moment.
        kept: an earlier reading, which spares what has not changed since.
    """
    about, damage = read_about(run.path), run.damage
    try:
        facts = read_journal_facts(run.path / EVENTS_FILE, known="" if kept is None else kept.own.newest)
        if facts.goes_on and (facts.started is not None or facts.rewound):
            facts, kept = read_journal_facts(run.path / EVENTS_FILE), None
    except Exception as error:  # of this run alone, and told in its row
        logger.debug("%s", run.path, exc_info=True)
        facts, kept, damage = JournalFacts(), None, damage or first_line(error) or type(error).__name__
    if kept is None or not facts.goes_on:
        config, own = _config(facts), _own_words(facts)
        summary, commit, dirty = _summary(facts, {}), "", None
    else:
        config = kept.config if facts.config is None else plain(flatten(facts.config))
        summary = _summary(facts, kept.summary)
        own = OwnWords(newest=facts.newest, tags=kept.own.tags, notes=kept.own.notes)
        commit, dirty = kept.commit, kept.dirty
    if facts.provenance is not None:
        commit, dirty = facts.provenance.commit, facts.provenance.dirty
    return RunEntry(
        name=run.name,
        id=run.id,
        kind=run.kind,
        live=run.is_live,
        pid=run.pid,
        state=run.state,
        stopped_by=run.stopped_by,
        created=run.created,
        ended=None if run.is_live or run.overview is None else run.overview.ts,
        tags=about.tags(own.tags),
        notes=own.notes if about.notes is None else about.notes,
        project=about.project,
        parent=about.parent,
        config=config,
        summary=summary,
        commit=commit,
        dirty=dirty,
        bytes=sum(sum(_sizes(run.path / name)) for name in _PARTS),
        overview=run.overview,
        damage=damage,
        own=own,
    )


def _config(facts: JournalFacts) -> dict[str, Any]:
    config: dict[str, Any] = {} if facts.started is None else plain(flatten(facts.started.config))
    return config


def _own_words(facts: JournalFacts) -> OwnWords:
    if facts.started is None:
        return OwnWords(newest=facts.newest)
    return OwnWords(newest=facts.newest, tags=tuple(facts.started.tags), notes=facts.started.notes)


def _summary(facts: JournalFacts, older: dict[str, Any]) -> dict[str, Any]:
    """Last values, over those of an earlier reading."""
    if facts.finished is not None:
        finished = facts.finished
        values: dict[str, Any] = {
            "round": facts.round,
            "return": finished.return_mean,
            "accuracy": finished.accuracy_mean,
            "best_accuracy": finished.accuracy_best,
        }
    else:
        values = {**({} if facts.has_summary else older), **facts.values, **facts.texts}
    told: dict[str, Any] = plain(values)
    return told


def _sizes(path: Path) -> Iterator[int]:
    """Bytes of a file, or of the files in a folder; links count as nothing, and what vanishes, too."""
    try:
        if not path.is_dir():
            yield path.stat(follow_symlinks=False).st_size
            return
        with os.scandir(path) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    yield from _sizes(Path(one.path))
                elif one.is_file(follow_symlinks=False):
                    yield one.stat(follow_symlinks=False).st_size
    except OSError:
        return
