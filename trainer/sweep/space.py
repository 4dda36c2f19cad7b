"""The space of a sweep: which options vary, and between what; read from TOML and checked."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.config import load as settings

Objective = Literal["return", "test_accuracy"]
_RANGE_KEYS = frozenset({"low", "high", "log", "step"})
_FORMS = "{low, high}, {low, high, log = true}, {low, high, step} or {choices = [..]}"


class SpaceError(EsperError):
    """A space cannot be searched.

    Attributes:
        problems: all that is wrong, a line each.
    """

    exit_code = 9

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True)
class Dimension:
    """An option that varies: between `low` and `high`, or over `choices`.

    Attributes:
        key: of the option.
        is_whole: whether it takes integers only.
        log: drawn evenly on a logarithmic scale.
        step: between two values; None = any.
        choices: what it is chosen from, a list as the text that `--set` takes; empty for a range.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    log: bool = False
    step: float | None = None
    choices: tuple[str | int | float | bool, ...] = ()


def read_space(
    file: Path, objective: Objective = "return", fixed: Iterable[str] = ()
) -> tuple[Dimension, ...]:
    """The dimensions of a space file, in its order.

    Args:
        file: TOML; an option's name to one of the forms `{low, high}`, `{low, high, log}`,
            `{low, high, step}`, `{choices}`.
        objective: what trials are judged by.
        fixed: keys of options that are given for all trials.

    Raises:
        SpaceError: what is wrong, a line each.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpaceError([f"{file}: cannot be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpaceError([f"{file}: is not TOML: {error}"]) from None
    dimensions: list[Dimension] = []
    problems: list[str] = []
    for key, form in _options_of(table):
        found = list(_problems_of_key(key, objective, fixed))
        if any(key == known.key for known in dimensions):
            found.append("is named twice")
        try:
            dimension = _dimension(key, form, str(file)) if not found else None
        except settings.ConfigError as error:
            problems.append(str(error))
            continue
        problems += [f"{file}: {key}: {problem}" for problem in found]
        if dimension is not None:
            dimensions.append(dimension)
    if not table:
        problems.append(f"{file}: names no option; write OPTION = {_FORMS}")
    if problems:
        raise SpaceError(problems)
    return tuple(dimensions)


def format_value(value: Any) -> str:
    """Format a value as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _options_of(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names of options and what stands there; sections may be nested tables or dotted names."""
    for name, value in table.items():
        key = prefix + name
        is_section = any(option.startswith(key + ".") for option in settings.OPTIONS)
        if is_section and isinstance(value, Mapping):
            yield from _options_of(value, key + ".")
        else:
            yield key, value


def _problems_of_key(key: str, objective: Objective, fixed: Iterable[str]) -> Iterator[str]:
    if key in fixed:
        yield "is given for all trials, too (--set); leave out one of them"
    if key == "rounds" or key.startswith("evaluation."):
        yield "is the same for all trials, which are compared on the same hosts after the same training"
    if (key.startswith("reward.") or key == "ppo.gamma") and objective == "return":
        yield "changes what the return means; compare by --objective test_accuracy"


def _dimension(key: str, form: Any, source: str) -> Dimension:
    """Raises ConfigError where the form, or a value in it, is wrong."""
    if key not in settings.OPTIONS:
        settings.convert(key, None, source)  # says which key was meant
    if not isinstance(form, Mapping):
        raise settings.ConfigError(f"{source}: {key} = {form!r}: write {_FORMS}; what is fixed goes to --set")
    unknown = [name for name in form if name not in _RANGE_KEYS | {"choices"}]
    if unknown:
        raise settings.ConfigError(f"{source}: {key}: {unknown[0]} is not known; write {_FORMS}")
    if "choices" in form:
        return _choice(key, form, source)
    return _range(key, form, source)


def _choice(key: str, form: Mapping[str, Any], source: str) -> Dimension:
    choices = form["choices"]
    if len(form) > 1:
        raise settings.ConfigError(f"{source}: {key}: choices stand alone; write {_FORMS}")
    if not isinstance(choices, list) or len(choices) < 2:
        raise settings.ConfigError(f"{source}: {key}: choices is a list of two values or more")
    values = []
    for choice in choices:
        value = settings.convert(key, choice, source)
        values.append(format_value(value) if isinstance(value, tuple) else value)
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise settings.ConfigError(f"{source}: {key}: {format_value(twice)} is named twice")
    return Dimension(key, choices=tuple(values))


def _range(key: str, form: Mapping[str, Any], source: str) -> Dimension:
    default = settings.OPTIONS[key].default
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise settings.ConfigError(f"{source}: {key}: has no range, for it is not a number; give choices")
    missing = [name for name in ("low", "high") if name not in form]
    if missing:
        raise settings.ConfigError(f"{source}: {key}: {missing[0]} is missing; write {_FORMS}")
    low, high, step = (_number(key, name, form.get(name), source) for name in ("low", "high", "step"))
    assert low is not None
    assert high is not None
    log = form.get("log", False)
    if not isinstance(log, bool):
        raise settings.ConfigError(f"{source}: {key}: log = {log!r}: must be true or false")
    is_whole = isinstance(default, int)
    problem = None
    if low >= high:
        problem = f"low = {low} must be below high = {high}; what is fixed goes to --set"
    elif log and low <= 0:
        problem = f"low = {low}: must be above 0 where log = true"
    elif log and step is not None:
        problem = "log and step exclude each other"
    elif step is not None and (step <= 0 or (is_whole and not isinstance(step, int))):
        problem = f"step = {step}: must be {'an integer' if is_whole else 'a number'} above 0"
    elif step is not None and (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step)):
        problem = f"high = {high} cannot be reached from low = {low} in steps of {step}"
    if problem is not None:
        raise settings.ConfigError(f"{source}: {key}: {problem}")
    return Dimension(key, low, high, is_whole, log, step)


def _number(key: str, name: str, value: Any, source: str) -> float | None:
    """`low`, `high` within the option's limits, or `step`; None where it is not given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise settings.ConfigError(f"{source}: {key}: {name} = {value!r}: must be a number")
    checked: float = value if name == "step" else settings.convert(key, value, source)
    return checked
