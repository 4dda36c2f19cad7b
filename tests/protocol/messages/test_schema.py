from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import jsonschema
import msgspec
import pytest

from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.events import EVENTS
from esper_overwatch.protocol.messages.schema import json_schema
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import until
from tests.protocol.raw import Raw
from tests.protocol.values import NEEDED
from tools.protocol_page import PAGE


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """Checks values; that the whole schema is one is checked once, since it takes seconds."""
    return jsonschema.Draft202012Validator({**schema, "$defs": json_schema()["$defs"]})


def test_the_pages_example_works(server: Server) -> None:
    page = PAGE.read_text(encoding="utf-8")
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", page, re.S)
    assert example is not None
    out = subprocess.run(
        [sys.executable, "-c", example[1]], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert "'state': 'accepted'" in out
    (command,) = until(server.mailbox.poll)
    assert (command.method, command.client) == ("pause", "ten lines")


def test_the_pages_three_lines_work(server: Server) -> None:
    page = PAGE.read_text(encoding="utf-8")
    example = re.search(r"## In three lines of Python\n\n```python\n(.*?)```", page, re.S)
    assert example is not None
    assert len(example[1].splitlines()) == 3
    process = subprocess.Popen([sys.executable, "-c", example[1]], stdout=subprocess.PIPE, text=True)
    (command,) = until(server.mailbox.poll)
    server.done(command, {"path": "/x.pt"})
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "/x.pt" in out


def test_the_schema_is_a_schema_and_is_served(server: Server) -> None:
    with Raw() as raw:
        served = raw.ask("qry", "schema")[0]["result"]
    assert served == json.loads(json.dumps(json_schema()))
    every = [
        schema for part in ("events", "requests", "results", "frames") for schema in served[part].values()
    ]
    jsonschema.Draft202012Validator.check_schema({"anyOf": every, "$defs": served["$defs"]})
    assert set(served["events"]) == set(EVENTS)
    assert set(served["requests"]) == set(served["results"]) == set(METHODS)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_requests_fit_their_schema(method) -> None:  # type: ignore[no-untyped-def]
    schema = validator(json_schema()["requests"][method.name])
    needed = NEEDED.get(method.name, {})
    defaults = msgspec.to_builtins(msgspec.convert(needed, method.params))
    schema.validate(json.loads(msgspec.json.encode(defaults)))
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({**needed, "colour": 1})


def test_a_float_may_be_a_word_and_nothing_else_may() -> None:
    schema = validator(json_schema()["events"]["governor.rollback"])
    event = {"reason": "x", "loss": "NaN", "restored_epoch": 1, "penalty": 0.5}
    schema.validate(event)
    for wrong in ({"loss": "nan"}, {"restored_epoch": "NaN"}, {"loss": None}):
        with pytest.raises(jsonschema.ValidationError):
            schema.validate({**event, **wrong})
