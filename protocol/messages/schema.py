"""JSON Schema of everything on the wire, made from the types.

`protocol/schema.json` is the schema as it is shipped, for tools that run no daemon; `tools/protocol_page.py`
writes it, and a test holds it equal to the types.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from typing import Any

import msgspec
from msgspec import Struct

from esper_overwatch.protocol.version import PROTOCOL_VERSION

from .commands import METHODS, Reply, Request
from .events import EVENTS
from .headers import BatchHeader, Heartbeat, ViewHeader
from .results import Accepted

FRAMES: dict[str, type[Struct]] = {
    "request": Request,
    "reply": Reply,
    "batch_header": BatchHeader,
    "view_header": ViewHeader,
    "heartbeat": Heartbeat,
}
"""Bodies of frames beside lines of events, by their names in the schema."""
_WORDS = {"enum": ["NaN", "Infinity", "-Infinity"]}


@functools.cache
def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: `events` by type, `requests` and `results` by method, the frames.

    Numbers that are floats also admit the words for NaN and the infinities. Descriptions are docstrings
    without their indentation, which Python 3.13 removes itself: the hash does not tell which Python made it.
    """
    classes = {spec.type: spec.cls for spec in EVENTS.values()}
    requests = {method.name: method.params for method in METHODS.values()}
    results = {method.name: method.result for method in METHODS.values()}
    every = [*classes.values(), *requests.values(), *results.values(), Accepted, *FRAMES.values()]
    types = list(dict.fromkeys(every))
    schemas, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    of = dict(zip(types, schemas, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"esper-overwatch protocol {PROTOCOL_VERSION}",
        "events": {name: of[cls] for name, cls in classes.items()},
        "requests": {name: of[cls] for name, cls in requests.items()},
        "results": {name: of[cls] for name, cls in results.items()},
        "accepted": of[Accepted],
        "frames": {name: of[cls] for name, cls in FRAMES.items()},
        "$defs": {name: _plain(definition) for name, definition in definitions.items()},
    }


def schema_bytes() -> bytes:
    """The schema as the bytes of `schema.json`."""
    return json.dumps(json_schema(), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


@functools.cache
def schema_hash() -> str:
    """Hash of the schema in `hello`: a client that knows it knows every type."""
    return hashlib.blake2b(schema_bytes(), digest_size=8).hexdigest()


def _plain(schema: Any) -> Any:
    """Remove indentation, and let numbers be their words."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(description := schema.get("description"), str):
        schema["description"] = inspect.cleandoc(description)
    if schema.get("type") == "number":
        about = {key: schema.pop(key) for key in ("description", "default") if key in schema}
        return {**about, "anyOf": [schema, _WORDS]}
    return {key: value if key in ("default", "enum") else _plain(value) for key, value in schema.items()}
