"""Describe errors in a request and its parameters; msgspec's own messages name types of Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_SHOWN_CHARACTERS = 64
_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "an object",
}
_NAMED = re.compile(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)


def split_reason(error: Exception) -> tuple[str, str]:
    """msgspec's message, split into what is wrong and where."""
    reason, _, path = str(error).partition(" - at `")
    return reason, path.rstrip("`") or "$"


def describe_error(cls: type, given: Any, error: Exception) -> str:
    """One line that names the field, such as `meta.deadline`, and says what it must be.

    Args:
        cls: what was wanted: a method's parameters, or the request itself.
        given: what there was in its place; not an object perhaps.
        error: that `msgspec.convert` raised for it.
    """
    reason, path = split_reason(error)
    _, components = msgspec.json.schema_components([cls])
    schema: Mapping[str, Any] = components[cls.__name__]
    names = path.removeprefix("$").split("[")[0].split(".")[1:]
    for name in names:
        if name not in schema["properties"] or name not in given:
            return f"{reason} at {path}"
        schema, given = schema["properties"][name], given[name]
        schema = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if found := _NAMED.match(reason):
        fields = schema["properties"]
        what = "is missing" if found[1] == "missing required" else "is not a parameter"
        takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
        return f"{found[2][:MAX_SHOWN_CHARACTERS]} {what}; {takes}"
    if not names and isinstance(given, dict):
        return reason
    return f"{'.'.join(names) or 'a request'} must be {_requirement(schema)}, not {_shown(given)}"


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "what is nested so deep"
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"


def _requirement(schema: Mapping[str, Any]) -> str:
    """Describe the values a schema allows: `a whole number, at least 1`."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(_requirement(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"a list, each {_requirement(schema.get('items', {}))}"
    parts = [_TYPES.get(schema.get("type", ""), str(schema.get("type", "of another type")))]
    parts += [f"at least {schema['minimum']}"] if "minimum" in schema else []
    parts += [f"at most {schema['maximum']}"] if "maximum" in schema else []
    if "maxLength" in schema:
        parts[0] += f" of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    parts += [schema["description"]] if "pattern" in schema else []
    return ", ".join(parts)
