"""Examples of every message: the corpus of lines that each version has written, which all later ones read.

Most were taken from real runs. For a message that the corpus lacks `complete_corpus` makes one from its type;
a line that is in the corpus is never changed. The reference page shows the first of each.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from esper_overwatch.protocol.codec.frames import encode_request
from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.messages.commands import METHODS, RequestMeta
from esper_overwatch.protocol.messages.events import EVENTS, Context, EventSpec
from esper_overwatch.protocol.messages.schema import FRAMES
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from . import ROOT

CORPUS = ROOT / "tests" / "protocol" / "corpus" / f"v{PROTOCOL_VERSION}"
FRAME_TYPES = {name: cls for name, cls in FRAMES.items() if name != "request"}
"""Requests have a part of the corpus of their own."""
TS = 1795257766858226
"""The time in every example, microseconds."""
_BY_NAME: dict[str, Any] = {
    "slot": "r0c1",
    "slots": ["r0c0", "r0c1"],
    "run": "7f3a01bc",
    "boot": "d470b3e9",
    "name": "digits-7f3a",
    "id": "9f0c5d1e7a2b4c6d",
    "command": "9f0c5d1e7a2b4c6d",
    "op": "9f0c5d1e7a2b4c6d",
    "blueprint": "norm",
    "blueprints": ["norm", "conv_light"],
    "from_stage": "DORMANT",
    "to_stage": "GERMINATED",
    "gate": "G2",
    "kind": "norm_drift",
    "client": "esper-tui/0.1.0",
    "by": "policy",
    "holder": "esper-daemon/0.1.0",
    "path": "checkpoints/round-000012.pt",
    "host": "gpu-box",
    "pid": 4242,
    "uid": 1000,
    "tag": "before-lunch",
    "text": "learning rate halved",
    "key": "ppo.learning_rate",
    "level": "DEBUG",
    "device": "cpu",
    "task": "digits",
    "source": "env07",
    "checks": {"healthy": True},
    "state": "TRAINING",
    "policy": "ppo",
    "stream": "metric",
    "until": TS,
    "since": TS,
    "from_ts": TS,
    "to_ts": TS,
    "ts": TS,
    "deadline": TS,
    "jsonrpc": "2.0",
    "v": 1,
    "op_fraction": {"WAIT": 0.75},
    "rows": [["cat"]],
    "seeds": {"FOSSILIZED": 1, "PRUNED": 2},
    "config": {},
    "method": "pause",
    "message": "round 12: return 0.912",
    "segment": "events-000003.jsonl.zst",
    "code": -32003,
    "logger": "esper_overwatch.trainer.daemon.rank0_hooks",
    "ttl": 60.0,
    "first": 806,
    "last": 812,
    "n": 7,
    "exit_code": 0,
    "result": {"state": "accepted"},
    "bye": None,
}


def example(hint: Any, name: str = "") -> Any:
    """A plain value of a type: dicts for structs and dataclasses.

    Args:
        hint: a type, a generic of lists and dicts, a Literal or a union.
        name: of the field, which may call for a value that reads well.
    """
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        known = _BY_NAME.get(name)
        return known if known in arguments else arguments[0]
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0], name)
    known = _BY_NAME.get(name)
    if known is not None and isinstance(known, origin or hint if (origin or hint) is not Any else object):
        return known
    if origin in (list, tuple):
        return [example(arguments[0])]
    if origin is dict:
        return {} if arguments[1] is Any else {"key": example(arguments[1])}
    if hasattr(hint, "__annotations__"):
        hints = typing.get_type_hints(hint, include_extras=True)
        names = dict(
            zip(
                *(getattr(hint, n, ()) for n in ("__struct_fields__", "__struct_encode_fields__")),
                strict=True,
            )
        )
        shown = {field: kind for field, kind in hints.items() if not field.startswith("_")}
        return {names.get(field, field): example(kind, field) for field, kind in shown.items()}
    simple: dict[Any, Any] = {str: name or "text", int: 1, float: 0.5, bool: True, Any: None}
    return simple[hint]


def event_line(spec: EventSpec) -> bytes:
    """An event as it is on the wire and in the journal."""
    event = msgspec.convert(example(spec.cls), spec.cls)
    env = 7 if "env" in spec.key else None
    return encode_event(812, TS, Context(round=3, epoch=7, env=env), event)


def request_body(method: str) -> bytes:
    """A request's frame."""
    params = {k: v for k, v in example(METHODS[method].params).items() if v is not None}
    meta = RequestMeta(deadline=TS, client="me")
    return encode_request("9f0c5d1e7a2b4c6d", method, params, meta)


def result_line(method: str) -> bytes:
    """The `result` of a method, beside its name."""
    return msgspec.json.encode({"method": method, "result": example(METHODS[method].result)})


def frame_line(name: str) -> bytes:
    """A reply, a heartbeat or the header of a batch or a view, under its name."""
    plain = example(FRAME_TYPES[name])
    plain.pop("error", None)
    return msgspec.json.encode({name: plain})


def corpus() -> dict[str, list[bytes]]:
    """The corpus: `events`, `requests`, `results` and `frames`, each a list of lines."""
    return {name: _lines(name) for name in ("events", "requests", "results", "frames")}


def _lines(name: str) -> list[bytes]:
    path = CORPUS / f"{name}.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def first_of_each(part: str) -> dict[str, bytes]:
    """The first of each in a part of the corpus: by type of event, by method, or by name of frame; of results
    the newest, since they are answers of daemons as they are now.
    """
    lines = corpus()[part]
    return {name_of(line): line for line in (lines if part == "results" else reversed(lines))}


def name_of(line: bytes) -> str:
    """Name the message that a line of the corpus is an example of."""
    tree = msgspec.json.decode(line)
    name: str = tree.get("type") or tree.get("method") or next(iter(tree))
    return name


def line_makers() -> dict[str, dict[str, Callable[[], bytes]]]:
    """Functions that make an example, by part of the corpus and name."""
    return {
        "events": {spec.type: functools.partial(event_line, spec) for spec in EVENTS.values()},
        "requests": {name: functools.partial(request_body, name) for name in METHODS},
        "results": {name: functools.partial(result_line, name) for name in METHODS},
        "frames": {name: functools.partial(frame_line, name) for name in FRAME_TYPES},
    }


def complete_corpus() -> None:
    """Add an example of each message that the corpus lacks."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    makers = line_makers()
    for part, lines in corpus().items():
        known = {name_of(line) for line in lines}
        lacking = [make() for name, make in makers[part].items() if name not in known]
        if lacking:
            with (CORPUS / f"{part}.jsonl").open("ab") as file:
                file.writelines(line + b"\n" for line in lacking)
