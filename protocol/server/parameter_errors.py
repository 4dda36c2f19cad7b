"""Describe errors in a request's parameters; msgspec's own messages name types of Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from esper_overwatch.protocol.messages.commands import Method, Params

MAX_SHOWN_CHARACTERS = 64
_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_NAMED = re.compile(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)


def split_reason(error: Exception) -> tuple[str, str]:
    """msgspec's message, split into what is wrong and where."""
    reason, _, path = str(error).partition(" - at `")
    return reason, path.rstrip("`") or "$"


def describe_parameter_error(method: Method, given: Mapping[str, Any], error: Exception) -> str:
    """One line that names the parameter and says what it must be.

    Args:
        method: whose parameters they are.
        given: the parameters of the request.
        error: that `msgspec.convert` raised for them.
    """
    reason, path = split_reason(error)
    fields = _fields_of(method.params)
    if found := _NAMED.match(reason):
        what = "is missing" if found[1] == "missing required" else "is not a parameter"
        takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
        return f"{method.name}: {found[2][:MAX_SHOWN_CHARACTERS]} {what}; {takes}"
    name = re.split(r"[.\[]", path.removeprefix("$."), maxsplit=1)[0]
    if name not in fields or name not in given:
        return f"{method.name}: {reason} at {path}"
    return f"{method.name}: {name} must be {_requirement(fields[name])}, not {_shown(given[name])}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"


def _fields_of(params: type[Params]) -> dict[str, dict[str, Any]]:
    """JSON Schema of each parameter, by name."""
    _, components = msgspec.json.schema_components([params])
    fields: dict[str, dict[str, Any]] = components[params.__name__]["properties"]
    return fields


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
    parts += [f"that matches {schema['pattern']}"] if "pattern" in schema else []
    return ", ".join(parts)
