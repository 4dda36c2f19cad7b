"""Writes the tables of docs/protocol.md, protocol/schema.json and the corpus's missing examples.

`python -m tools.protocol_page`. All three come from the types of `protocol.messages`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from typing import Any

import msgspec

from protocol.errors import ERRORS
from protocol.messages.commands import METHODS, Method
from protocol.messages.events import EVENTS, EventSpec
from protocol.messages.schema import json_schema, schema_bytes
from protocol.messages.vocabulary import STREAMS

from .markers import ROOT
from .message_examples import complete_corpus, first_of_each

SCHEMA_FILE = ROOT / "protocol" / "schema.json"
PAGE = ROOT / "docs" / "protocol.md"


def fill_in(page: str) -> str:
    """The page with its tables made again between their markers."""
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
    for name in sorted({spec.cls.__module__ for spec in EVENTS.values()}):
        for cls in ast.parse(inspect.getsource(sys.modules[name])).body:
            if isinstance(cls, ast.ClassDef):
                for field, text in zip(cls.body, cls.body[1:], strict=False):
                    match field, text:
                        case ast.AnnAssign(target=ast.Name(id=of)), ast.Expr(
                            value=ast.Constant(value=str(words))
                        ):
                            found[cls.name, of] = re.sub(r"\s+", " ", words).strip()
    return found


if __name__ == "__main__":
    complete_corpus()
    SCHEMA_FILE.write_bytes(schema_bytes())
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
