"""Lines once written can be read for ever: golden lines, and what a newer version may add."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import jsonschema
import msgspec
import pytest

from esper_overwatch.protocol.codec.frames import decode_heartbeat, decode_reply
from esper_overwatch.protocol.codec.json_lines import Unknown, decode_line
from esper_overwatch.protocol.messages.commands import METHODS, Request
from esper_overwatch.protocol.messages.events import EVENTS
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.messages.schema import json_schema, schema_bytes, schema_hash
from esper_overwatch.protocol.server.immediate_commands import ImmediateCommands
from esper_overwatch.protocol.server.mailbox import Mailbox
from esper_overwatch.protocol.server.request_handler import RequestHandler
from esper_overwatch.protocol.server.server import Server
from tests.protocol.raw import Raw
from tests.protocol.values import INCIDENT
from tools.message_examples import FRAME_TYPES, corpus, line_makers, name_of
from tools.protocol_page import SCHEMA_FILE

CORPUS = corpus()
ADMIN = Peer(role="admin")
HINT = "run: python -m tools.protocol_page"


def named(lines: list[bytes]) -> Any:
    return pytest.mark.parametrize("line", lines, ids=[f"{name_of(x)}-{i}" for i, x in enumerate(lines)])


@functools.cache
def validator(part: str, name: str) -> jsonschema.Draft202012Validator:
    schema = json_schema()
    return jsonschema.Draft202012Validator({**schema[part][name], "$defs": schema["$defs"]})


def test_the_corpus_has_every_message() -> None:
    have = {part: {name_of(line) for line in lines} for part, lines in CORPUS.items()}
    assert have["events"] >= set(EVENTS), HINT
    assert have["requests"] >= set(METHODS), HINT
    assert have["results"] >= set(METHODS), HINT
    assert have["frames"] >= set(FRAME_TYPES), HINT


@named(CORPUS["events"])
def test_past_event_decodes_to_the_values_written(line: bytes) -> None:
    event = decode_line(line)
    assert not isinstance(event.data, Unknown), "a type is never taken away"
    written = json.loads(line)
    held = msgspec.to_builtins(event.data)
    for field, value in written["data"].items():
        assert field in held, f"{field} was taken away"
        assert as_words(held[field]) == value, field
    assert (event.seq, event.ts, event.stream, event.tv) == (
        written["seq"],
        written["ts"],
        written["stream"],
        written["tv"],
    )


def as_words(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [as_words(item) for item in value]
    return {key: as_words(item) for key, item in value.items()} if isinstance(value, dict) else value


@named(CORPUS["events"])
def test_every_past_event_fits_todays_schema(line: bytes) -> None:
    event = json.loads(line)
    validator("events", event["type"]).validate(event["data"])


@named(CORPUS["requests"])
def test_every_past_request_is_still_taken(line: bytes) -> None:
    tree = json.loads(line)
    validator("requests", tree["method"]).validate(tree["params"])
    validator("frames", "request").validate(tree)
    request = msgspec.json.decode(line, type=Request)
    plane = RequestHandler(
        boot="b",
        state=lambda: METHODS[request.method].states[-1],
        answer=lambda *_: ({}, None),
        mailbox=Mailbox(),
        emit=lambda _: None,
        immediate=ImmediateCommands(lambda _: None, lambda: 1, lambda _: INCIDENT),
    )
    later = msgspec.structs.replace(request, meta=msgspec.structs.replace(request.meta, deadline=None))
    frames = plane.handle(METHODS[request.method].socket, [b"id", b"", msgspec.json.encode(later)], ADMIN)
    assert frames is not None
    reply = json.loads(frames[2])
    validator("frames", "reply").validate({"result": None, "error": None, **reply})
    assert "result" in reply, reply


@named(CORPUS["results"])
def test_every_past_result_is_still_read(line: bytes) -> None:
    tree = json.loads(line)
    validator("results", tree["method"]).validate(tree["result"])
    held = msgspec.to_builtins(msgspec.convert(tree["result"], METHODS[tree["method"]].result))
    assert kept_of(held, tree["result"]) == tree["result"], "a field was taken away or changed"


def kept_of(held: Any, before: Any) -> Any:
    """What is held of the fields that there were before, at any depth."""
    if isinstance(before, dict) and isinstance(held, dict):
        return {field: kept_of(held[field], value) for field, value in before.items() if field in held}
    if isinstance(before, list) and isinstance(held, list) and len(held) == len(before):
        return [kept_of(*pair) for pair in zip(held, before, strict=True)]
    return held


@named(CORPUS["frames"])
def test_every_past_frame_is_still_read(line: bytes) -> None:
    ((name, body),) = json.loads(line).items()
    validator("frames", name).validate(body)
    raw = json.dumps(body).encode()
    decode = {"reply": decode_reply, "heartbeat": decode_heartbeat}.get(name)
    assert decode(raw) if decode else msgspec.json.decode(raw, type=FRAME_TYPES[name])


@named(CORPUS["events"])
def test_what_a_newer_version_adds_is_passed_over(line: bytes) -> None:
    tree = json.loads(line)
    tree["data"]["added_later"] = {"deep": [1, None, "x"]}
    tree["ctx"]["added_later"] = 5
    tree["added_later"] = True
    newer, today = decode_line(json.dumps(tree).encode()), decode_line(line)
    assert as_words(msgspec.to_builtins(newer.data)) == as_words(msgspec.to_builtins(today.data))
    assert newer.ctx == today.ctx
    tree["type"] = "invented.later"
    unknown = decode_line(json.dumps(tree).encode())
    assert isinstance(unknown.data, Unknown)
    assert (unknown.type, unknown.seq) == ("invented.later", today.seq)


@pytest.mark.parametrize(("part", "name"), [(p, n) for p, made in line_makers().items() for n in made])
def test_an_example_made_from_a_type_is_valid(part: str, name: str) -> None:
    tree = json.loads(line_makers()[part][name]())
    if part == "events":
        validator(part, name).validate(tree["data"])
        assert not isinstance(decode_line(line_makers()[part][name]()).data, Unknown)
    elif part in ("requests", "results"):
        validator(part, name).validate(tree["params" if part == "requests" else "result"])
    else:
        validator(part, name).validate(tree[name])


def test_schema_does_not_tell_which_python_made_it() -> None:
    """Python 3.13 takes the indentation out of docstrings, those before it do not."""
    indented = [line for line in SCHEMA_FILE.read_text(encoding="utf-8").splitlines() if r"\n  " in line]
    assert indented == []


def test_the_schema_that_is_shipped_is_that_of_the_types(server: Server) -> None:
    assert SCHEMA_FILE.read_bytes() == schema_bytes(), HINT
    with Raw() as raw:
        assert raw.ask("qry", "hello")[0]["result"]["schema"] == schema_hash()
