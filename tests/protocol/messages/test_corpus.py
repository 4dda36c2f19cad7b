"""What has once been written can be read for ever: golden lines, and what a newer version may add to them."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema
import msgspec
import pytest

from protocol.commands import METHODS, Request
from protocol.control import ControlServer, Mailbox
from protocol.events import EVENTS
from protocol.examples import FRAMES, complete, corpus, example, lines_made, name_of
from protocol.immediate import Immediate
from protocol.peer import Peer
from protocol.schema import SHIPPED, as_file, json_schema, schema_hash
from protocol.server import Server
from protocol.wire import Unknown, decode_heartbeat, decode_line, decode_reply

from .raw import Raw

CORPUS = corpus()
ADMIN = Peer(role="admin")
HINT = "run: python -m protocol.schema"


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
    assert have["frames"] >= set(FRAMES), HINT


@pytest.mark.fault(45)
@named(CORPUS["events"])
def test_every_past_event_decodes_to_the_values_it_was_written_with(line: bytes) -> None:
    event = decode_line(line)
    assert not isinstance(event.data, Unknown), "a type is never taken away"
    written = json.loads(line)
    held = msgspec.to_builtins(event.data)
    for field, value in written["data"].items():
        assert field in held, f"{field} was taken away"
        assert as_words(held[field]) == value, field
    assert (event.seq, event.ts, event.stream, event.tv) == (
        written["seq"], written["ts"], written["stream"], written["tv"],
    )  # fmt: skip


def as_words(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, list):
        return [as_words(item) for item in value]
    return {key: as_words(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.fault(45)
@named(CORPUS["events"])
def test_every_past_event_fits_todays_schema(line: bytes) -> None:
    event = json.loads(line)
    validator("events", event["type"]).validate(event["data"])


@pytest.mark.fault(45)
@named(CORPUS["requests"])
def test_every_past_request_is_still_taken(line: bytes) -> None:
    tree = json.loads(line)
    validator("requests", tree["method"]).validate(tree["params"])
    validator("frames", "request").validate(tree)
    request = msgspec.json.decode(line, type=Request)
    plane = ControlServer(
        boot="b", state=lambda: METHODS[request.method].states[-1], answer=lambda *_: ({}, None),
        mailbox=Mailbox(), emit=lambda _: None, immediate=Immediate(lambda _: None, lambda: 1),
    )  # fmt: skip
    later = msgspec.structs.replace(request, meta=msgspec.structs.replace(request.meta, deadline=None))
    frames = plane.handle(METHODS[request.method].socket, [b"id", b"", msgspec.json.encode(later)], ADMIN)
    assert frames is not None
    reply = json.loads(frames[2])
    validator("frames", "reply").validate({"result": None, "error": None, **reply})
    assert "result" in reply, reply


@pytest.mark.fault(45)
@named(CORPUS["frames"])
def test_every_past_frame_is_still_read(line: bytes) -> None:
    ((name, body),) = json.loads(line).items()
    validator("frames", name).validate(body)
    raw = json.dumps(body).encode()
    decode = {"reply": decode_reply, "heartbeat": decode_heartbeat}.get(name)
    assert decode(raw) if decode else msgspec.json.decode(raw, type=FRAMES[name])


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


@pytest.mark.parametrize(("part", "name"), [(p, n) for p, made in lines_made().items() for n in made])
def test_an_example_made_from_a_type_is_valid(part: str, name: str) -> None:
    tree = json.loads(lines_made()[part][name]())
    if part == "events":
        validator(part, name).validate(tree["data"])
        assert not isinstance(decode_line(lines_made()[part][name]()).data, Unknown)
    elif part == "requests":
        validator(part, name).validate(tree["params"])
    else:
        validator(part, name).validate(tree[name])


def test_completing_changes_no_line_that_is_there() -> None:
    complete()
    assert corpus() == CORPUS, HINT


def test_examples_of_hard_types() -> None:
    assert example(list[list[float | None]]) == [[0.5]]
    assert example(dict[str, int]) == {"key": 1}


def test_the_schema_that_is_shipped_is_that_of_the_types(server: Server) -> None:
    assert SHIPPED.read_bytes() == as_file(), HINT
    with Raw() as raw:
        assert raw.ask("qry", "hello")[0]["result"]["schema"] == schema_hash()
