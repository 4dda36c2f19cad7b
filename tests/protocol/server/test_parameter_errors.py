"""Refused parameters are named, with what they must be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.server.parameter_errors import describe_error
from esper_overwatch.protocol.server.request_handler import parse_request


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("op.get", {}, "op.get: op is missing; it takes op"),
        ("pause", {"x": 1}, "pause: x is not a parameter; it takes none"),
        ("stop", {"mode": "x"}, 'stop: mode must be one of after_epoch, after_round, not "x"'),
        ("stop", {"checkpoint": 1}, "stop: checkpoint must be true or false, not 1"),
        (
            "replay",
            {"stream": "life", "first": 0, "last": 1},
            "replay: first must be a whole number, at least 1, not 0",
        ),
        ("param.set", {"key": "a", "value": "x"}, 'param.set: value must be a number, not "x"'),
        (
            "telemetry.escalate",
            {"env": "x"},
            'telemetry.escalate: env must be a whole number or null, not "x"',
        ),
        (
            "mark",
            {"text": ""},
            'mark: text must be text of 1 to 256 characters, not ""',
        ),
        (
            "snapshot",
            {"streams": ["life", "x"]},
            'snapshot: streams must be a list, each one of life, log, metric, trace, not ["life", "x"]',
        ),
        (
            "checkpoint",
            {"tag": "a/b"},
            "checkpoint: tag must be text of 0 to 32 characters, part of the file's name: letters of ASCII, "
            'digits, `-`, `_` and `.`, not "a/b"',
        ),
    ],
)
def test_message_names_parameter_and_requirement(method: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(given, METHODS[method].params)
    assert f"{method}: {describe_error(METHODS[method].params, given, raised.value)}" == message


def test_long_values_are_cut() -> None:
    given = {"tag": "x" * 5000}
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(given, METHODS["checkpoint"].params)
    assert len(describe_error(METHODS["checkpoint"].params, given, raised.value)) < 250


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", "a request must be an object, not []"),
        ('{"id":"a"}', "method is missing; it takes id, method, params, meta, jsonrpc"),
        ('{"id":1,"method":"ping"}', "id must be text of 1 to 64 characters, not 1"),
        ('{"id":"a","method":"ping","params":null}', "params must be an object, not null"),
        (
            '{"id":"a","method":"ping","meta":{"deadline":5.5}}',
            "meta.deadline must be a whole number or null, not 5.5",
        ),
        (
            '{"id":"a","method":"ping","meta":{"expect":{"state":"paused"}}}',
            'meta.expect.state must be one of PAUSED, STARTING, STOPPING, TRAINING or null, not "paused"',
        ),
    ],
)
def test_message_names_field_of_request(body: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(body.encode())
    assert raised.value.kind == "invalid_request"
    assert raised.value.message == message


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert({"tag": value}, METHODS["checkpoint"].params)
    message = describe_error(METHODS["checkpoint"].params, {"tag": value}, raised.value)
    assert message.endswith(", not what is nested so deep")
