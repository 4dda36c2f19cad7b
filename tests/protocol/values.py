"""Any event from its type hints: plain ones, and hypothesis strategies."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.events import EVENTS, Incident
from tools.message_examples import example

E = TypeVar("E")

INCIDENT = Incident(
    id="b00t-1",
    change="began",
    active=True,
    severity="warning",
    since=5,
    kind="norm_drift",
    title="gradient norm drifts",
    source="env07",
    scope="env07",
)
"""One that is open."""


def an_incident(id: str, **changes: Any) -> Incident:
    """One of that id; `over=True` for one that is over."""
    if changes.pop("over", False):
        changes |= {"active": False, "change": "over", "over": 9}
    return dataclasses.replace(INCIDENT, id=id, **changes)


def an_event(cls: type[E], **values: Any) -> E:
    """One with these values, and plain ones in the other fields that it cannot do without."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    hints = typing.get_type_hints(cls)
    return cls(**{name: example(hints[name], name) for name in needed} | values)


NEEDED: dict[str, dict[str, Any]] = {
    "replay": {"stream": "life", "first": 1, "last": 2},
    "history": {"stream": "life"},
    "op.get": {"op": "x"},
    "op.cancel": {"op": "x"},
    "param.set": {"key": "ppo.learning_rate", "value": 1e-4},
    "seed.germinate": {"env": 0, "slot": "r0c0", "blueprint": "norm"},
    "seed.prune": {"env": 0, "slot": "r0c0"},
    "mark": {"text": "here"},
    "anomaly.acknowledge": {"source": "env07", "kind": "norm_drift", "since": 1},
    "anomaly.mute": {"source": "env07", "kind": "norm_drift"},
}
"""Parameters that a method cannot do without."""


def assert_fits(result: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Assert that a result is of its type, and has no field that the type does not know."""
    assert _is_within(result, msgspec.to_builtins(msgspec.convert(result, kind))), result


def _is_within(value: Any, held: Any) -> bool:
    """True if nothing was lost; fields with a default may have been added."""
    if isinstance(value, dict):
        return isinstance(held, dict) and all(k in held and _is_within(v, held[k]) for k, v in value.items())
    if isinstance(value, list):
        return len(value) == len(held) and all(map(_is_within, value, held))
    return bool(value == held)


EDGES = [float("nan"), float("inf"), float("-inf"), -0.0, 1e308, 5e-324, 1.7e15]
floats = st.one_of(st.sampled_from(EDGES), st.floats())
texts = st.one_of(st.text(max_size=12), st.sampled_from(["null", "NaN", "Infinity", '"\\\n\x00', "é中🜂"]))
# Words for non-finite floats stay text where the type does not say float, so Any holds none of those.
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field annotated with `hint` may have."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*[values_of(part) for part in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(texts, values_of(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        parts = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values_of(part) for name, part in parts.items()})
    simple = {
        float: floats,
        int: st.integers(-(2**53), 2**53),
        str: texts,
        bool: st.booleans(),
        type(None): st.none(),
        Any: anything,
    }
    return simple[hint]


def events_of(type_: str) -> st.SearchStrategy[Any]:
    """Instances of a registered event class."""
    cls = EVENTS[type_].cls
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values_of(hint) for name, hint in hints.items()})


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals NaN, 0.0 differs from -0.0, and 1.0 equals 1."""
    if isinstance(a, float) or isinstance(b, float):
        return (a != a and b != b) or (a == b and np.signbit(float(a)) == np.signbit(float(b)))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "__dict__"):
        return type(a) is type(b) and same(vars(a), vars(b))
    return bool(a == b)
