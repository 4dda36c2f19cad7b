"""JSON Schema of everything on the wire, from the types."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from .commands import METHODS, Reply, Request
from .events import EVENTS
from .version import PROTOCOL_VERSION
from .wire import BatchHeader, Heartbeat

_WORDS = {"enum": ["NaN", "Infinity", "-Infinity"]}


@functools.cache
def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: `events` by type, `requests` by method, the frames, and their `$defs`.

    Numbers that are floats also admit the words for NaN and the infinities.
    """
    events = {spec.type: spec.cls for spec in EVENTS.values()}
    requests = {method.name: method.params for method in METHODS.values()}
    frames = {"request": Request, "reply": Reply, "batch_header": BatchHeader, "heartbeat": Heartbeat}
    types = list(dict.fromkeys([*events.values(), *requests.values(), *frames.values()]))
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    of = dict(zip(types, schemas, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"esper-overwatch protocol {PROTOCOL_VERSION}",
        "events": {name: of[cls] for name, cls in events.items()},
        "requests": {name: of[cls] for name, cls in requests.items()},
        "frames": {name: of[cls] for name, cls in frames.items()},
        "$defs": {name: _with_words(definition) for name, definition in definitions.items()},
    }


def _with_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"anyOf": [schema, _WORDS]}
    return {key: value if key in ("default", "enum") else _with_words(value) for key, value in schema.items()}
