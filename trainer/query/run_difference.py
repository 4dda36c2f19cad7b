"""In what two runs differ: configuration, code, surroundings, results; by name, without what is equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field

from esper_overwatch.protocol.catalogue.run_facts import RunFacts, flatten
from esper_overwatch.protocol.messages.events import RunProvenance

_FILE = re.compile(r"diff --git a/.* b/(?P<path>.*)")
Values = Mapping[str, Any]


class Difference(Struct, frozen=True, kw_only=True):
    """One value that differs; None where a run does not have it."""

    section: str
    name: str
    a: Any = None
    b: Any = None


class RunDifference(Struct, frozen=True, kw_only=True):
    """All that differs between two runs."""

    a: str
    """Name of the first."""
    b: str
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be compared, and why."""


def compare_runs(a: RunFacts, b: RunFacts) -> RunDifference:
    """Compare the newest boots of two runs."""
    sections = (_sections(a), _sections(b))
    differences: list[Difference] = []
    for section in dict.fromkeys(chain(*sections)):
        values = [each.get(section) for each in sections]
        if None in values:
            continue
        first, second = (value or {} for value in values)
        if section == "packages" and None in (a.found.provenance, b.found.provenance):
            first, second = _common(first, second), _common(second, first)
        differences += _differences(section, first, second)
    return RunDifference(
        a=a.run.name,
        b=b.run.name,
        differences=[one for one in differences if not _is_own_name(one, a, b)],
        notes=[*_notes(a, b)],
    )


def _common(values: Values, others: Values) -> Values:
    return {name: value for name, value in values.items() if name in others}


def _differences(section: str, a: Values, b: Values) -> Iterator[Difference]:
    for name in dict.fromkeys([*a, *b]):
        value_a, value_b = a.get(name), b.get(name)
        if value_a != value_b and not (value_a != value_a and value_b != value_b):  # NaN is NaN here
            yield Difference(section=section, name=name, a=value_a, b=value_b)


def _is_own_name(difference: Difference, a: RunFacts, b: RunFacts) -> bool:
    """True of command lines that differ in the runs' names alone, which they have to."""
    if difference.section != "command line" or difference.name != "words":
        return False
    words = [
        ["RUN" if word == facts.run.name else word for word in value or ()]
        for facts, value in ((a, difference.a), (b, difference.b))
    ]
    return words[0] == words[1]


def _sections(facts: RunFacts) -> dict[str, Values | None]:
    """What is compared, by section; None for a section that a run knows nothing of."""
    started, told = facts.started, facts.found.provenance
    return {
        "run": {"kind": started.kind, "tags": started.tags, "notes": started.notes},
        "configuration": flatten(started.config),
        "execution": {**flatten(started.execution), "ranks": started.ranks},
        "machine": {"host": started.host, "device": started.device},
        "code": _code(told) if told and told.commit else None,
        "command line": {"words": told.command, "working directory": told.folder} if told else None,
        "interpreter": {"version": told.python, "path": told.executable} if told else None,
        "packages": _packages(facts),
        "environment": told.environment if told else None,
        "result": _result(facts),
    }


def _code(told: RunProvenance) -> dict[str, Any]:
    """The commit, and for each changed file the lines of its difference."""
    return {"commit": told.commit, "dirty": told.dirty, **_by_file(told.diff)}


def _by_file(diff: Sequence[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for line in diff:
        match = _FILE.fullmatch(line)
        if match is not None:
            files[f"changes of {match['path']}"] = lines = []
        if files:
            lines.append(line)
    return files


def _packages(facts: RunFacts) -> dict[str, str]:
    started = facts.started
    known = {"esper-overwatch": started.version, **({"torch": started.torch} if started.torch else {})}
    return known if facts.found.provenance is None else {**known, **facts.found.provenance.packages}


def _result(facts: RunFacts) -> dict[str, Any]:
    """State and last round of a training, state and last values of a published run."""
    result: dict[str, Any] = {"state": facts.run.state}
    finished = facts.found.finished
    if finished is not None:
        result |= {"round": facts.found.round, "return": finished.return_mean}
        result |= {"accuracy": finished.accuracy_mean, "best accuracy": finished.accuracy_best}
    return {**result, **facts.found.values, **facts.found.texts}


def _notes(a: RunFacts, b: RunFacts) -> Iterator[str]:
    for facts in (a, b):
        name, told = facts.run.name, facts.found.provenance
        if told is None:
            yield (
                f"run {name} does not say what it runs: code, command line, interpreter, packages and "
                "environment are not compared"
            )
        elif not told.commit:
            yield f"run {name} does not say its code, which is not compared: {told.code_missing}"
        elif told.code_missing:
            yield f"run {name} says its commit only: {told.code_missing}"
        if told is not None and told.diff_cut:
            yield f"run {name} has changed more of its code than is kept: what is behind may differ"
