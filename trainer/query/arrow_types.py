"""The Arrow types of the fields of events."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

import pyarrow as pa

_SIMPLE = {float: pa.float64(), int: pa.int64(), str: pa.string(), bool: pa.bool_()}


def column(name: str, hint: Any) -> pa.Field:
    """The column of a field annotated with `hint`; JSON text (so its metadata say) where it has no shape."""
    type_ = _arrow(hint)
    if type_ is None:
        return pa.field(name, pa.string(), metadata={"content": "json"})
    optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return pa.field(name, type_, nullable=optional)


def _arrow(hint: Any) -> pa.DataType | None:
    """The Arrow type of a type hint, or None where it has no fixed shape."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return pa.string()
    if origin in (typing.Union, types.UnionType):
        (inner,) = [part for part in arguments if part is not type(None)]
        return _arrow(inner)
    if origin in (list, dict):
        inner = _arrow(arguments[-1])
        if inner is None:
            return None
        return pa.list_(inner) if origin is list else pa.map_(pa.string(), inner)
    return _SIMPLE.get(hint)
