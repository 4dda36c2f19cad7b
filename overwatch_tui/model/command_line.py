"""The line behind `:`: methods of the daemon with their parameters, completed and explained from their types.

    telemetry.escalate epochs=10 env=3
    param.set ppo.learning_rate 3e-4
    mark "the cooler failed"

Values without a name are taken in the order of the parameters. What the daemon refuses it says itself.
"""

from __future__ import annotations

import json
import shlex
import types
import typing
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.commands import METHODS, Method

from .loop_commands import OfferedCommand

PLUMBING = frozenset(("hello", "ping", "snapshot", "replay", "schema"))
"""Methods that the terminal itself uses, and nobody types."""


class CommandLineError(EsperError):
    """A line that cannot be understood."""

    exit_code = 2


class Parsed(NamedTuple):
    """A parsed command line."""

    method: str
    params: dict[str, Any]
    is_query: bool
    """True if the method only reads."""


class Parameter(NamedTuple):
    """One parameter of a method."""

    name: str
    kind: Any
    """Type, without annotations."""
    about: str
    default: str
    """Empty = it has to be given."""

    @property
    def words(self) -> tuple[str, ...]:
        """The values that there are; empty where any of its type will do."""
        return _literals(self.kind)

    @property
    def is_text(self) -> bool:
        return self.kind is str or _names_words(self.kind)


def parameters_of(method: Method) -> list[Parameter]:
    """Parameters of a method, in the order in which values may be given without names."""
    hints = typing.get_type_hints(method.params, include_extras=True)
    found = []
    for field in msgspec.structs.fields(method.params):
        kind, about = hints[field.name], ""
        if typing.get_origin(kind) is Annotated:
            kind, *notes = typing.get_args(kind)
            about = next((n.description for n in notes if getattr(n, "description", None)), "")
        default = "" if field.default is msgspec.NODEFAULT else _shown(field.default)
        found.append(Parameter(field.name, kind, about, default))
    return found


def known_methods(*, answered: Collection[str] = ()) -> list[str]:
    """Names that one can type; without `answered` by the daemon, those of all its methods."""
    return sorted(name for name in METHODS if name not in PLUMBING and (not answered or name in answered))


def complete(line: str, methods: Sequence[str]) -> list[str]:
    """Lines that the last word can become, in the order in which Tab offers them."""
    head, _, last = line.rpartition(" ")
    typed = head.split()
    if not typed:
        return [name + " " for name in methods if name.startswith(last)] + [
            name + " " for name in methods if last and last in name and not name.startswith(last)
        ]
    method = METHODS.get(typed[0])
    if method is None:
        return []
    parameters = parameters_of(method)
    name, equals, value = last.partition("=")
    if equals:
        words = next((p.words for p in parameters if p.name == name), ())
        return [f"{head} {name}={word} " for word in words if word.lower().startswith(value.lower())]
    given = {word.partition("=")[0] for word in typed[1:]}
    return [f"{head} {p.name}=" for p in parameters if p.name.startswith(last) and p.name not in given]


def explain(line: str) -> str:
    """Explanation of the method or the parameter under the cursor."""
    words = line.lstrip().split(" ")
    method = METHODS.get(words[0])
    if method is None:
        return "type to search; Enter executes, Tab completes, Up brings earlier lines back"
    parameters = parameters_of(method)
    name, equals, _ = words[-1].partition("=")
    for parameter in parameters:
        if len(words) > 1 and equals and parameter.name == name:
            values = f" ({' | '.join(parameter.words)})" if parameter.words else ""
            default = f", default {parameter.default}" if parameter.default else ""
            return f"{name}: {parameter.about}{values}{default}"
    shown = " ".join(f"[{p.name}={p.default}]" if p.default else f"{p.name}=" for p in parameters)
    return f"{method.name} {shown}".rstrip() + f": {method.effect}"


def parse_line(line: str, loop_commands: Collection[OfferedCommand] = ()) -> Parsed | None:
    """Parse a method or a loop's command, then values or NAME=VALUE. None = empty line.

    Raises:
        CommandLineError: an unknown method, a quote that does not end, too many values.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise CommandLineError(f"{error}".lower()) from None
    if not words:
        return None
    name, rest = words[0], words[1:]
    method = METHODS.get(name)
    offered = next((each for each in loop_commands if each.name == name), None)
    if offered is not None and method is None:
        return Parsed(name, _offered_params(offered, rest), is_query=False)
    if method is None:
        raise CommandLineError(f"{name} is nothing that can be done; Tab shows what there is")
    return Parsed(name, _params(name, rest, parameters_of(method)), method.socket == "qry")


def _offered_params(command: OfferedCommand, words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a loop's command by their types."""
    try:
        return command.params(_assigned(command.name, words, [one.name for one in command.parameters]))
    except ValueError as error:
        raise CommandLineError(str(error)) from None


def _params(name: str, words: Sequence[str], parameters: list[Parameter]) -> dict[str, Any]:
    by_name = {p.name: p for p in parameters}
    return {key: _value(text, by_name[key]) for key, text in _assigned(name, words, [*by_name]).items()}


def _assigned(command: str, words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Texts by parameter: those that say whose they are, the others in the order of the parameters."""
    texts: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and key in names):
            left = [name for name in names if name not in texts]
            if not left:
                raise CommandLineError(f"{command} takes {_count(len(names))}; {word} is one too many")
            key, text = left[0], word
        texts[key] = text
    return texts


def _count(number: int) -> str:
    return {0: "no value", 1: "1 value"}.get(number, f"{number} values")


def _value(text: str, parameter: Parameter) -> Any:
    """Text where the type says so, a list where it has several, else JSON, else text."""
    if typing.get_origin(parameter.kind) is tuple:
        return text.split(",")
    if parameter.is_text:
        match = [word for word in parameter.words if word.lower() == text.lower()]
        return match[0] if match else text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _literals(kind: Any) -> tuple[str, ...]:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return tuple(str(value) for value in typing.get_args(kind))
    if origin in (typing.Union, types.UnionType, tuple):
        return tuple(word for part in typing.get_args(kind) for word in _literals(part))
    if kind is bool:
        return ("true", "false")
    return ()


def _names_words(kind: Any) -> bool:
    return typing.get_origin(kind) is Literal and all(isinstance(v, str) for v in typing.get_args(kind))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return '""' if value == "" else json.dumps(value) if not isinstance(value, str) else value
