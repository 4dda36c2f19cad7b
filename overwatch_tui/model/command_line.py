"""The line behind `:`: methods of the daemon and commands of a published run's loop, with their parameters.

    telemetry.escalate epochs=10 env=3
    param.set ppo.learning_rate 3e-4
    mark "the cooler failed"

They are completed and explained from the types. Values without a name are taken in the order of the
parameters. What the daemon refuses it says itself; the values of a loop's command are checked here, too.
"""

from __future__ import annotations

import json
import shlex
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.commands import METHODS, Method

PLUMBING = frozenset(("hello", "ping", "snapshot", "replay", "schema"))
"""Methods that the terminal itself uses, and nobody types."""


_PLACEHOLDERS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}
_NO_COMMANDS: Mapping[str, TypedCommand] = {}


class CommandLineError(EsperError):
    """A line that cannot be understood."""


class Parsed(NamedTuple):
    """A parsed command line."""

    method: str
    params: dict[str, Any]
    is_query: bool
    """True if the method only reads."""


class Parameter(NamedTuple):
    """One parameter of a method or a loop's command."""

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
        values = typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else (0,)
        return self.kind is str or all(isinstance(each, str) for each in values)

    @property
    def usage(self) -> str:
        """`epochs=INT`, or `[epochs=5]` where it may be left out."""
        if self.default:
            return f"[{self.name}={self.default}]"
        return f"{self.name}={_PLACEHOLDERS.get(self.kind, '')}"


class TypedCommand(NamedTuple):
    """What can be typed: a method of the daemon, or a command that a published run's loop has registered."""

    name: str
    effect: str
    parameters: Sequence[Parameter]
    """In the order in which values may be given without names."""
    is_query: bool = False

    @property
    def usage(self) -> str:
        """Parameters as they are typed."""
        return " ".join(parameter.usage for parameter in self.parameters)


LoopCommands = Mapping[str, TypedCommand]
"""By name."""


def parameters_of(method: Method) -> list[Parameter]:
    """Parameters of a method."""
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


def read_loop_commands(described: dict[str, Any]) -> dict[str, TypedCommand]:
    """The commands of `status` by name; what is not as expected is left out."""
    found = {}
    for name, of in sorted(described.items()):
        about = of if isinstance(of, dict) else {}
        rows = about.get("parameters")
        parameters = [
            _loop_parameter(key, one)
            for key, one in (rows.items() if isinstance(rows, dict) else ())
            if isinstance(one, dict)
        ]
        found[name] = TypedCommand(name, str(about.get("help") or ""), parameters)
    return found


def _loop_parameter(name: str, of: dict[str, Any]) -> Parameter:
    kind: Any = {"bool": bool, "int": int, "float": float}.get(str(of.get("type")), str)
    hint = {bool: "yes or no", int: "an integer", float: "a number"}.get(kind, "text")
    if isinstance(choices := of.get("enum"), list) and all(isinstance(one, str) for one in choices):
        kind, hint = Literal[tuple(choices)], " or ".join(choices)
    return Parameter(name, kind, hint, _shown(of["default"]) if "default" in of else "")


def _find(name: str, loop: LoopCommands) -> TypedCommand | None:
    """What a name means; of a command that a loop shares with trainings the method."""
    method = METHODS.get(name)
    if method is None:
        return loop.get(name)
    return TypedCommand(name, method.effect, parameters_of(method), method.socket == "qry")


def known_methods(*, answered: Collection[str] = ()) -> list[str]:
    """Names that one can type; without `answered` by the daemon, those of all its methods."""
    return sorted(name for name in METHODS if name not in PLUMBING and (not answered or name in answered))


def complete(line: str, methods: Sequence[str], loop: LoopCommands = _NO_COMMANDS) -> list[str]:
    """Lines that the last word can become, in the order in which Tab offers them."""
    head, _, last = line.rpartition(" ")
    typed = head.split()
    if not typed:
        return [name + " " for name in methods if name.startswith(last)] + [
            name + " " for name in methods if last and last in name and not name.startswith(last)
        ]
    command = _find(typed[0], loop)
    if command is None:
        return []
    parameters = command.parameters
    name, equals, value = last.partition("=")
    if equals:
        words = next((p.words for p in parameters if p.name == name), ())
        return [f"{head} {name}={word} " for word in words if word.lower().startswith(value.lower())]
    given = {word.partition("=")[0] for word in typed[1:]}
    return [f"{head} {p.name}=" for p in parameters if p.name.startswith(last) and p.name not in given]


def explain(line: str, loop: LoopCommands = _NO_COMMANDS) -> str:
    """Explanation of the command or the parameter under the cursor."""
    words = line.lstrip().split(" ")
    command = _find(words[0], loop)
    if command is None:
        return "type to search; Enter executes, Tab completes, Up brings earlier lines back"
    name, equals, _ = words[-1].partition("=")
    for parameter in command.parameters:
        if len(words) > 1 and equals and parameter.name == name:
            values = f" ({' | '.join(parameter.words)})" if parameter.words else ""
            default = f", default {parameter.default}" if parameter.default else ""
            return f"{name}: {parameter.about}{values}{default}"
    return f"{command.name} {command.usage}".rstrip() + f": {command.effect}"


def parse_line(line: str, loop: LoopCommands = _NO_COMMANDS) -> Parsed | None:
    """Parse a method or a loop's command, then values or NAME=VALUE. None = empty line.

    Raises:
        CommandLineError: an unknown name, a quote that does not end, too many values, one of another type.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise CommandLineError(f"{error}".lower()) from None
    if not words:
        return None
    command = _find(words[0], loop)
    if command is None:
        raise CommandLineError(f"{words[0]} is nothing that can be done; Tab shows what there is")
    parameters = {one.name: one for one in command.parameters}
    texts = _assigned(command.name, words[1:], [*parameters])
    read = _value
    if command.name not in METHODS:
        read, texts = _checked, {name: text for name, text in texts.items() if text}
        for one in command.parameters:
            if not (one.default or one.name in texts):
                raise CommandLineError(f"{one.name} is missing: {one.about}")
    values = {name: read(parameters[name], text) for name, text in texts.items()}
    return Parsed(command.name, values, command.is_query)


def _checked(parameter: Parameter, text: str) -> Any:
    """The value of a loop's parameter, of its type."""
    value = text.strip()
    if parameter.kind is bool:
        value = {"yes": "true", "y": "true", "no": "false", "n": "false"}.get(value.lower(), value)
    try:
        return msgspec.convert(value, parameter.kind, strict=False)
    except msgspec.ValidationError:
        raise CommandLineError(f"{parameter.name} = {text!r}: must be {parameter.about}") from None


def _assigned(command: str, words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Texts by parameter: those that say whose they are, the others in the order of the parameters."""
    texts: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (equals and key in names):
            left = [name for name in names if name not in texts]
            if not left:
                takes = {0: "no value", 1: "1 value"}.get(len(names), f"{len(names)} values")
                raise CommandLineError(f"{command} takes {takes}; {word} is one too many")
            key, text = left[0], word
        texts[key] = text
    return texts


def _value(parameter: Parameter, text: str) -> Any:
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


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return '""' if value == "" else json.dumps(value) if not isinstance(value, str) else value
