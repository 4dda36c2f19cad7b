"""Writes the tables of docs/reference/protocol.md, protocol/schema.json and the corpus's missing examples.

`python -m tools.protocol_page`. All three come from the types of `protocol.messages`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from esper_overwatch.protocol.errors import ERRORS
from esper_overwatch.protocol.messages.commands import METHODS, Method, Reply, Request
from esper_overwatch.protocol.messages.events import EVENTS, Context, EventSpec
from esper_overwatch.protocol.messages.headers import BatchHeader, Heartbeat, ViewHeader
from esper_overwatch.protocol.messages.results import Accepted
from esper_overwatch.protocol.messages.schema import json_schema, schema_bytes
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from esper_overwatch.protocol.runs import Connection
from esper_overwatch.protocol.storage.keys import KeyPair

from . import ROOT
from .message_examples import complete_corpus, first_of_each

TYPES: dict[str, type] = {
    "connection.json": Connection,
    "NAME.key": KeyPair,
    "ctx": Context,
    "batch header": BatchHeader,
    "heartbeat": Heartbeat,
    "view header": ViewHeader,
    "request": Request,
    "reply": Reply,
    "accepted": Accepted,
}
"""Types in files and frames, beside the data of events, by their place in the page."""
SCHEMA_FILE = ROOT / "protocol" / "schema.json"
FIELD_HEADER = ["field", "type", "meaning"]
PAGE = ROOT / "docs" / "reference" / "protocol.md"


def fill_in(page: str) -> str:
    """The page with its tables made again between their markers."""
    tables = {
        **{name: _type(name, cls) for name, cls in TYPES.items()},
        "methods": _methods() + "\n" + "\n".join(map(_method, METHODS.values())),
        "errors": _errors(),
        "events": _events(first_of_each("events")),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, rest = page.split(begin)
        page = f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return page


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"
    )


def _methods() -> str:
    rows = [[f"`{m.name}`", f"`{m.socket}`", m.need, _states(m), m.effect] for m in METHODS.values()]
    return _table(["method", "socket", "role", "states", "answer or effect"], rows)


def _method(method: Method) -> str:
    """One method's parameters, result and examples."""
    request = first_of_each("requests")[method.name]
    result = msgspec.json.encode(msgspec.json.decode(first_of_each("results")[method.name])["result"])
    where = "Result" if method.socket == "qry" else "Result, in its `command.done`"
    fields, parameters = [*_fields(method.result)], _parameters(method)
    answer = f"{where}. {_summary(method.result)}\n\n{_table(FIELD_HEADER, fields)}"
    parts = [
        f"### Method `{method.name}`\n",
        f"Parameters:\n\n{_table(FIELD_HEADER, parameters)}" if parameters else "No parameters.\n",
        answer if fields else f"{where}: `{{}}`.\n",
        f"```json\n{request.decode()}\n{result.decode()}\n```\n",
    ]
    return "\n".join(parts)


def _type(name: str, cls: type) -> str:
    """A type's fields and, where the corpus has one, an example."""
    table = _table(FIELD_HEADER, [*_fields(cls)])
    line = first_of_each("frames").get(name.replace(" ", "_"))
    if line is None:
        return table
    (body,) = msgspec.json.decode(line).values()
    return f"{table}\n```json\n{msgspec.json.encode(body).decode()}\n```\n"


def _fields(cls: type, prefix: str = "") -> Iterator[list[str]]:
    """A row for each field of a struct or dataclass, and below it one for each of the objects in it."""
    meanings = _field_meanings(cls.__module__)
    encoded = dict(
        zip(getattr(cls, "__struct_fields__", ()), getattr(cls, "__struct_encode_fields__", ()), strict=True)
    )
    optional = _optional_fields(cls)
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        meaning = meanings.get((cls.__name__, name), "")
        if typing.get_origin(hint) is Annotated:
            hint, *notes = typing.get_args(hint)
            meaning = next((n.description for n in notes if getattr(n, "description", None)), meaning)
        path = prefix + encoded.get(name, name)
        yield [f"`{path}`", f"`{_type_name(hint)}`{', optional' if name in optional else ''}", meaning]
        inner, path = _object_in(hint, path)
        if inner is not None:
            yield from _fields(inner, f"{path}.")


def _optional_fields(cls: type) -> set[str]:
    """Those with a default, which may be absent."""
    if dataclasses.is_dataclass(cls):
        return {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    return {f.name for f in msgspec.structs.fields(cls) if not f.required}


def _object_in(hint: Any, path: str) -> tuple[type | None, str]:
    """The struct or dataclass that a field holds, alone, or as items of a list or an object."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _object_in(arguments[0], path)
    if origin is list:
        return _object_in(arguments[0], f"{path}[]")
    if origin is dict:
        return _object_in(arguments[1], f"{path}.*")
    is_object = dataclasses.is_dataclass(hint) or (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    )
    return (hint if is_object else None), path


def _type_name(hint: Any) -> str:
    """A type as JSON has it: `integer`, `{name: string}`, `[number]`, `"ctl" or "qry"`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_type_name, arguments))
    if origin is Literal:
        return " or ".join(msgspec.json.encode(word).decode() for word in arguments)
    if origin in (list, tuple):
        return f"[{_type_name(arguments[0])}]"
    if origin is dict:
        return f"{{{_key_name(arguments[0])}: {_type_name(arguments[1])}}}"
    plain: dict[Any, str] = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        Any: "any",
        types.NoneType: "null",
    }
    return plain.get(hint, "object")


def _key_name(hint: Any) -> str:
    return "string" if hint is str else "stream"


def _summary(cls: type) -> str:
    doc = inspect.getdoc(cls) or ""
    return "" if doc.startswith(f"{cls.__name__}(") else re.sub(r"\s+", " ", doc)


def _states(method: Method) -> str:
    return ", ".join(method.states) if method.socket == "ctl" else "any"


def _parameters(method: Method) -> list[list[str]]:
    properties = json_schema()["$defs"].get(method.params.__name__, {}).get("properties", {})
    hints = typing.get_type_hints(method.params)
    return [
        [
            f"`{name}`{_default(schema)}",
            f"`{_type_name(hints[name])}`",
            f"{schema['description']}{_bounds(schema)}",
        ]
        for name, schema in properties.items()
    ]


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    return f" = `{msgspec.json.encode(value).decode()}`" if value != STREAMS else " = all"


def _bounds(schema: dict[str, Any]) -> str:
    forms = {
        "minimum": "from {:,}",
        "maximum": "to {:,}",
        "minLength": "from {}",
        "maxLength": "up to {} characters",
    }
    schema = schema.get("anyOf", [schema])[0]
    bounds = [form.format(schema[key]) for key, form in forms.items() if key in schema]
    return f" ({' '.join(bounds)})" if bounds else ""


def _errors() -> str:
    rows = [
        [str(e.code), f"`{e.kind}`", e.meaning, str(e.exit_code), "yes" if e.retryable else ""]
        for e in ERRORS.values()
    ]
    return _table(["code", "kind", "meaning", "exit code", "may be retried"], rows)


def _events(examples: dict[str, bytes]) -> str:
    parts = []
    for spec in EVENTS.values():
        meanings = _field_meanings(spec.cls.__module__)
        rows = [
            [f"`{f.name}`", f"`{f.type}`", meanings.get((spec.cls.__name__, f.name), "")]
            for f in dataclasses.fields(spec.cls)
        ]
        parts.append(
            f"### `{spec.type}`\n\n{_summary(spec.cls)}\n\nStream `{spec.stream}`. {_kept(spec)}\n\n"
            + _table(FIELD_HEADER, rows)
            + f"\n```json\n{examples.get(spec.type, b'').decode()}\n```\n"
        )
    return "\n".join(parts)


def _kept(spec: EventSpec) -> str:
    subject = f" per {' and '.join(spec.key)}" if spec.key else ""
    return f"Snapshot: {spec.keep}{subject}."


@functools.cache
def _field_meanings(module: str) -> dict[tuple[str, str], str]:
    """The text under a field in the source, by (class, field), of a module's classes."""
    found = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:], strict=False):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=of)), ast.Expr(
                        value=ast.Constant(value=str(words))
                    ):
                        found[node.name, of] = re.sub(r"\s+", " ", words).strip()
    return found


if __name__ == "__main__":
    complete_corpus()
    SCHEMA_FILE.write_bytes(schema_bytes())
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
