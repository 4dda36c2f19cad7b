"""JSON Schema of everything on the wire, and the tables of docs/protocol.md, both from the types.

`schema.json` beside this module is the schema as it is shipped, for tools that run no daemon; a test holds
it equal to the types. `python -m protocol.schema` brings it, the corpus of examples and the page up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from . import events
from .commands import METHODS, Method, Reply, Request
from .errors import ERRORS
from .events import EVENTS, STREAMS, EventSpec
from .examples import complete, first_of_each
from .version import PROTOCOL_VERSION
from .wire import BatchHeader, Heartbeat, ViewHeader

SHIPPED = Path(__file__).with_name("schema.json")
PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
_WORDS = {"enum": ["NaN", "Infinity", "-Infinity"]}


@functools.cache
def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: `events` by type, `requests` by method, the frames, and their `$defs`.

    Numbers that are floats also admit the words for NaN and the infinities.
    """
    classes = {spec.type: spec.cls for spec in EVENTS.values()}
    requests = {method.name: method.params for method in METHODS.values()}
    frames = {"request": Request, "reply": Reply, "batch_header": BatchHeader,
              "view_header": ViewHeader, "heartbeat": Heartbeat}  # fmt: skip
    types = list(dict.fromkeys([*classes.values(), *requests.values(), *frames.values()]))
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    of = dict(zip(types, schemas, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"esper-overwatch protocol {PROTOCOL_VERSION}",
        "events": {name: of[cls] for name, cls in classes.items()},
        "requests": {name: of[cls] for name, cls in requests.items()},
        "frames": {name: of[cls] for name, cls in frames.items()},
        "$defs": {name: _with_words(definition) for name, definition in definitions.items()},
    }


def as_file() -> bytes:
    """The schema as the bytes of `schema.json`."""
    return json.dumps(json_schema(), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


@functools.cache
def schema_hash() -> str:
    """What `hello` tells of the schema: a client that knows this hash knows every type."""
    return hashlib.blake2b(as_file(), digest_size=8).hexdigest()


def _with_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        about = {key: schema.pop(key) for key in ("description", "default") if key in schema}
        return {**about, "anyOf": [schema, _WORDS]}
    return {key: value if key in ("default", "enum") else _with_words(value) for key, value in schema.items()}


# --- the reference page ----------------------------------------------------------------------------


def filled_in(page: str) -> str:
    """The page with its tables made anew between their markers."""
    examples = first_of_each()
    tables = {
        "methods": _methods() + "\n" + _requests(examples),
        "errors": _errors(),
        "events": _events(examples),
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
    rows = [
        [f"`{m.name}`", f"`{m.socket}`", m.need, _parameters(m), _states(m), m.effect]
        for m in METHODS.values()
    ]
    return _table(["method", "socket", "role", "parameters", "states", "answer or effect"], rows)


def _requests(examples: dict[str, bytes]) -> str:
    lines = b"\n".join(examples[name] for name in METHODS if name in examples).decode()
    return f"An example of each:\n\n```json\n{lines}\n```\n"


def _states(method: Method) -> str:
    return ", ".join(method.states) if method.socket == "ctl" else "any"


def _parameters(method: Method) -> str:
    properties = json_schema()["$defs"].get(method.params.__name__, {}).get("properties", {})
    return "; ".join(
        f"`{name}`{_default(schema)}: {schema['description']}{_bounds(schema)}"
        for name, schema in properties.items()
    )


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    return f" = `{msgspec.json.encode(value).decode()}`" if value != STREAMS else " = all"


def _bounds(schema: dict[str, Any]) -> str:
    forms = {"minimum": "from {:,}", "maximum": "to {:,}", "maxLength": "up to {} characters"}
    schema = schema.get("anyOf", [schema])[0]
    bounds = [form.format(schema[key]) for key, form in forms.items() if key in schema]
    if "enum" in schema:
        bounds = [", ".join(map(str, schema["enum"]))]
    return f" ({' '.join(bounds)})" if bounds else ""


def _errors() -> str:
    rows = [
        [str(e.code), f"`{e.kind}`", e.meaning, str(e.exit_code), "yes" if e.retryable else ""]
        for e in ERRORS.values()
    ]
    return _table(["code", "kind", "meaning", "exit code", "may be retried"], rows)


def _events(examples: dict[str, bytes]) -> str:
    meanings = _field_meanings()
    parts = []
    for spec in EVENTS.values():
        doc = inspect.getdoc(spec.cls) or ""
        summary = "" if doc.startswith(f"{spec.cls.__name__}(") else re.sub(r"\s+", " ", doc)
        rows = [
            [f"`{f.name}`", f"`{f.type}`", meanings.get((spec.cls.__name__, f.name), "")]
            for f in dataclasses.fields(spec.cls)
        ]
        parts.append(
            f"### `{spec.type}`\n\n{summary}\n\nStream `{spec.stream}`. {_kept(spec)}\n\n"
            + _table(["field", "type", "meaning"], rows)
            + f"\n```json\n{examples.get(spec.type, b'').decode()}\n```\n"
        )
    return "\n".join(parts)


def _kept(spec: EventSpec) -> str:
    subject = f" per {' and '.join(spec.key)}" if spec.key else ""
    return f"Snapshot: {spec.keep}{subject}."


def _field_meanings() -> dict[tuple[str, str], str]:
    """The text under a field in the source, by (class, field)."""
    found = {}
    for cls in ast.parse(inspect.getsource(events)).body:
        if not isinstance(cls, ast.ClassDef):
            continue
        for field, text in zip(cls.body, cls.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[cls.name, field.target.id] = re.sub(r"\s+", " ", str(text.value.value)).strip()
    return found


if __name__ == "__main__":
    complete()
    SHIPPED.write_bytes(as_file())
    PAGE.write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
