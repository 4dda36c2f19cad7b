"""The line behind `:`, without a terminal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.command_line import (
    PLUMBING,
    CommandLineError,
    complete,
    explain,
    known_methods,
    parameters_of,
    parse_line,
    read_loop_commands,
)
from esper_overwatch.protocol.messages.commands import METHODS
from tests.protocol.values import NEEDED

METHOD_NAMES = known_methods()


@pytest.mark.parametrize(
    ("line", "method", "params"),
    [
        ("pause", "pause", {}),
        ("telemetry.escalate debug 10", "telemetry.escalate", {"level": "DEBUG", "epochs": 10}),
        ("telemetry.escalate epochs=10 env=3", "telemetry.escalate", {"epochs": 10, "env": 3}),
        ("param.set ppo.learning_rate 3e-4", "param.set", {"key": "ppo.learning_rate", "value": 3e-4}),
        ('mark "the cooler failed"', "mark", {"text": "the cooler failed"}),
        ("mark a=b", "mark", {"text": "a=b"}),
        ("mark 12", "mark", {"text": "12"}),
        ("checkpoint tag=7", "checkpoint", {"tag": "7"}),
        ("stop checkpoint=false", "stop", {"checkpoint": False}),
        (
            "seed.germinate 3 r0c1 conv_light tempo=3",
            "seed.germinate",
            {"env": 3, "slot": "r0c1", "blueprint": "conv_light", "tempo": 3},
        ),
        ("op.list", "op.list", {}),
    ],
)
def test_a_line_is_a_method_and_its_parameters(line: str, method: str, params: dict[str, Any]) -> None:
    parsed = parse_line(line)
    assert parsed is not None
    assert (parsed.method, parsed.params) == (method, params)
    assert parsed.is_query is (METHODS[method].socket == "qry")
    msgspec.convert(parsed.params, METHODS[method].params)


def test_a_loops_own_command_takes_names_and_values() -> None:
    parameters = {"every": {"type": "int"}, "name": {"type": "str", "default": ""}}
    save = read_loop_commands({"save": {"parameters": parameters}})
    parsed = parse_line("save every=5 name=best", save)
    assert parsed is not None
    assert parsed.params == {"every": 5, "name": "best"}
    assert parse_line("save 5", save) == parsed._replace(params={"every": 5})
    for line, problem in (("save", "every is missing"), ("save 1 a b", "b is one too many")):
        with pytest.raises(CommandLineError, match=problem):
            parse_line(line, save)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("fly", "fly is nothing that can be done"),
        ("pause now", "pause takes no value; now is one too many"),
        ('mark "open', "no closing quotation"),
        ("mark a b", "mark takes 1 value; b is one too many"),
    ],
)
def test_what_cannot_be_understood_is_told(line: str, problem: str) -> None:
    with pytest.raises(CommandLineError, match=problem):
        parse_line(line)


def test_tab_completes_methods_parameters_and_values() -> None:
    assert complete("tele", METHOD_NAMES) == ["telemetry.escalate "]
    assert complete("cal", METHOD_NAMES) == ["telemetry.escalate "]
    assert complete("seed.", METHOD_NAMES) == ["seed.germinate ", "seed.prune "]
    assert complete("telemetry.escalate ", METHOD_NAMES) == [
        f"telemetry.escalate {name}=" for name in ("level", "epochs", "env")
    ]
    assert complete("telemetry.escalate epochs=3 e", METHOD_NAMES) == ["telemetry.escalate epochs=3 env="]
    assert "telemetry.escalate level=DEBUG " in complete("telemetry.escalate level=d", METHOD_NAMES)
    assert complete("stop checkpoint=", METHOD_NAMES) == ["stop checkpoint=true ", "stop checkpoint=false "]
    assert complete("fly ", METHOD_NAMES) == []


@pytest.mark.parametrize("space", [" ", "  ", "   "])
def test_spaces_in_front_of_a_method_change_nothing(space: str) -> None:
    assert complete(space, METHOD_NAMES) == complete("", METHOD_NAMES)
    assert complete(space + "tele", METHOD_NAMES) == ["telemetry.escalate "]
    assert complete(f"{space}mark ", METHOD_NAMES) == [f"{space}mark text="]
    assert explain(f"{space}mark text=") == explain("mark text=")
    assert parse_line(f"{space}mark a") == parse_line("mark a")


def test_every_method_and_parameter_is_explained() -> None:
    for name in METHOD_NAMES:
        assert METHODS[name].effect in explain(name)
        for parameter in parameters_of(METHODS[name]):
            assert parameter.about, f"{name} {parameter.name}"
            assert parameter.about in explain(f"{name} {parameter.name}=")
    assert "Tab completes" in explain("fl")


def test_plumbing_and_what_is_not_answered_is_not_offered() -> None:
    assert not PLUMBING & set(METHOD_NAMES)
    assert known_methods(answered=["pause", "hello"]) == ["pause"]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_can_be_typed(name: str) -> None:
    words = [f"{key}={value}" for key, value in NEEDED.get(name, {}).items()]
    parsed = parse_line(" ".join([name, *words]))
    assert parsed is not None
    msgspec.convert(parsed.params, METHODS[name].params)


@given(st.text(max_size=60) | st.text(" =.marktexpus", max_size=12))
def test_any_text_is_a_line_or_an_error(text: str) -> None:
    explain(text)
    complete(text, METHOD_NAMES)
    try:
        parse_line(text)
    except CommandLineError as error:
        assert str(error)  # noqa: PT017
