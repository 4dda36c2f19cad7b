"""Conditions of rules: `loss is nan`, `drift > 2 for 5 epochs`, `incident.severity >= warning`, `silent`."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isinf, isnan
from typing import Any

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.messages.vocabulary import SEVERITIES, SEVERITY_RANK

MAX_CHARACTERS = 256
SEVERITY_SUBJECTS = ("incident.severity", "alert.level")
END_WORDS = ("completed", "stopped", "failed")
"""How a boot ended in order."""
WORDS = (*END_WORDS, *ANOMALY_GUIDES)
"""Conditions by themselves: an end, or a kind of anomaly that is raised."""
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
STATES: dict[str, Callable[[float], bool]] = {
    "nan": isnan,
    "infinite": isinf,
    "nonfinite": lambda number: not isfinite(number),
}
SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600}
UNITS = ("epochs", "steps", *SECONDS)
"""Epochs of a training and steps of a published run are the same: the run's own clock."""
_TOKEN = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([<>]=?|[=!]=|=)|([^\s<>=!"']+))""")
_BARE = re.compile(r"[^\s<>=!\"']+")


@dataclass(frozen=True)
class Condition:
    """One condition; `str` of it is how it is written."""

    subject: str
    """Name of a metric, one of `SEVERITY_SUBJECTS`, or one of `WORDS` where `test` is empty."""
    test: str = ""
    """One of `COMPARISONS`, or `is`."""
    value: float | str = ""
    """A number, a severity, or one of `STATES`."""
    hold: float = 0.0
    """How long it must hold, in `unit`; 0 = it need hold once."""
    unit: str = ""

    @property
    def is_word(self) -> bool:
        """True of an end or a kind of anomaly, which have neither test nor value."""
        return not self.test

    @property
    def is_of_metric(self) -> bool:
        """True where numbers are compared."""
        return bool(self.test) and self.subject not in SEVERITY_SUBJECTS

    def holds(self, number: float) -> bool:
        """Judge a metric's value."""
        if isinstance(self.value, str):
            return STATES[self.value](number)
        return COMPARISONS[self.test](number, self.value)

    def holds_severity(self, severity: str) -> bool:
        """Judge a severity."""
        return COMPARISONS[self.test](SEVERITY_RANK[severity], SEVERITY_RANK[str(self.value)])

    def __str__(self) -> str:
        name = self.subject if _BARE.fullmatch(self.subject) else _quoted(self.subject)
        if self.is_word:
            return name
        value = self.value if isinstance(self.value, str) else f"{self.value:.15g}"
        return f"{name} {self.test} {value}" + (f" for {self.hold:.15g} {self.unit}" if self.hold else "")


def _quoted(name: str) -> str:
    return f'"{name}"' if '"' not in name else f"'{name}'"


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        ValueError: it is none; says in one line what to write.
    """
    tokens = _tokens(text)
    subject, is_quoted = tokens[0]
    words = [word for word, _ in tokens[1:]]
    if not words:
        if subject not in WORDS or is_quoted:
            near = difflib.get_close_matches(subject, WORDS, n=1, cutoff=0.7)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"{subject[:80]!r} is no condition by itself{hint}; "
                f"write a test behind a metric, as in: {_example(subject)}"
            )
        return Condition(subject)
    test, rest = words[0], words[1:]
    if test not in COMPARISONS and test != "is":
        raise ValueError(
            f"after {subject[:80]!r} stands {test[:80]!r}: write is, {', '.join(COMPARISONS)}, "
            f"as in: {_example(subject)}"
        )
    if not rest:
        raise ValueError(f"nothing stands after {test!r}: write a value, as in: {_example(subject)}")
    if subject in SEVERITY_SUBJECTS and test == "is":
        test = "=="
    condition = Condition(subject, test, _value(subject, test, rest[0]))
    return condition if len(rest) == 1 else _held(condition, rest[1:])


def _tokens(text: str) -> list[tuple[str, bool]]:
    """The words of a condition, and whether each stood in quotation marks."""
    text, at, found = text.strip(), 0, []
    if not text or len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"{len(text)} characters: write 1 to {MAX_CHARACTERS}, as in: drift > 2 for 5 epochs"
        )
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"{text[at:][:80]!r} cannot be read: put a name with spaces or signs into "
                "quotation marks, as in: 'val loss' > 2"
            )
        found.append((match[match.lastindex or 0], (match.lastindex or 0) <= 2))
        at = match.end()
    name, is_quoted = found[0]
    if not name.isprintable() or not name or (name in (*COMPARISONS, "=") and not is_quoted):
        raise ValueError("a name is missing: begin with a metric or a word, as in: loss is nan")
    return found


def _value(subject: str, test: str, text: str) -> float | str:
    if subject in SEVERITY_SUBJECTS:
        if text in SEVERITIES:
            return text
        raise ValueError(f"{subject} {test} {text[:80]!r}: write one of {', '.join(SEVERITIES)}")
    if test == "is":
        if text in STATES:
            return text
        raise ValueError(f"{subject[:80]} is {text[:80]!r}: write is {', is '.join(STATES)}, or a comparison")
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if isfinite(number):
        return number
    raise ValueError(f"{subject[:80]} {test} {text[:80]!r}: write a number, as in: {_example(subject)}")


def _held(condition: Condition, words: list[str]) -> Condition:
    """The same condition, which must hold for a while."""
    if words[0] != "for" or len(words) != 3:
        raise ValueError(f"{' '.join(words)[:80]!r} stands behind it: write nothing, or as in: for 5 epochs")
    if not condition.is_of_metric:
        raise ValueError(f"{condition.subject} cannot be held against time: write it without 'for'")
    unit = words[2] if words[2].endswith("s") else words[2] + "s"
    try:
        hold = float(words[1])
    except ValueError:
        hold = 0.0
    if not 0.0 < hold <= 1e9:
        raise ValueError(f"for {words[1][:80]!r}: write a number above 0, as in: for 5 epochs")
    if unit not in UNITS:
        raise ValueError(f"for {words[1][:20]} {words[2][:80]!r}: write one of {', '.join(UNITS)}")
    return Condition(condition.subject, condition.test, condition.value, hold, unit)


def _example(subject: str) -> str:
    if subject in SEVERITY_SUBJECTS:
        return f"{subject} >= warning"
    return f"{subject[:80] if _BARE.fullmatch(subject) else _quoted(subject[:80])} is nan"
