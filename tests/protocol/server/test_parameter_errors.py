"""Refused parameters are named, with what they must be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.server.parameter_errors import describe_parameter_error


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
    ],
)
def test_message_names_parameter_and_requirement(method: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(given, METHODS[method].params)
    assert describe_parameter_error(METHODS[method], given, raised.value) == message


def test_long_values_are_cut() -> None:
    given = {"tag": "x" * 5000}
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(given, METHODS["checkpoint"].params)
    assert len(describe_parameter_error(METHODS["checkpoint"], given, raised.value)) < 250
