"""Which bytes tell of an anomaly, in which terminal and when."""

from __future__ import annotations

from datetime import datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.render.notifier import (
    CHOICES,
    Outlet,
    QuietHours,
    TerminalNotifier,
    choose_outlet,
    parse_quiet_hours,
)

NIGHT = QuietHours(time(22), time(7))


def tmux(passes: str, around: str) -> dict[str, str]:
    return {"show-options": passes, "display-message": around}


def chosen(choice: str, environment: dict[str, str], answers: dict[str, str] | None = None) -> Outlet:
    return choose_outlet(choice, environment, lambda command: (answers or {}).get(command[1], ""))


@pytest.mark.parametrize(
    ("environment", "form"),
    [
        ({"TERM": "xterm-kitty"}, "osc99"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "osc99"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "osc9"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "osc9"),
        ({"TERM": "foot"}, "osc777"),
        ({"TERM": "rxvt-unicode-256color"}, "osc777"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, "bell"),
        ({"TERM": "linux"}, "bell"),
        ({}, "bell"),
        ({"STY": "1.pts", "KITTY_WINDOW_ID": "1"}, "bell"),
    ],
)
def test_terminal_is_told_in_its_own_way(environment: dict[str, str], form: str) -> None:
    assert chosen("auto", environment) == Outlet(form)


@pytest.mark.parametrize("choice", ["auto", "osc9"])
def test_tmux_that_hands_nothing_on_gets_the_bell(choice: str) -> None:
    environment = {"TMUX": "/tmp/tmux", "KITTY_WINDOW_ID": "1"}
    assert chosen(choice, environment, tmux("off\n", "xterm-kitty kitty(0.31)")) == Outlet("bell")
    assert chosen(choice, environment) == Outlet("bell"), "tmux does not answer"


def test_tmux_that_hands_on_names_the_terminal_around() -> None:
    environment = {"TMUX": "/tmp/tmux", "TERM": "tmux-256color"}
    assert chosen("auto", environment, tmux("on", "xterm-256color WezTerm 2024")) == Outlet("osc9", True)
    assert chosen("auto", environment, tmux("all", "xterm-256color ")) == Outlet("bell")
    assert chosen("osc777", environment, tmux("on", "")) == Outlet("osc777", True)


def test_sequences_are_those_of_each_form() -> None:
    def made(form: str, *, wrapped: bool = False) -> str:
        return TerminalNotifier(Outlet(form, wrapped)).sequence("esper a;b", "env03 rollback")

    assert made("off") == ""
    assert made("bell") == "\a"
    assert made("osc9") == "\x1b]9;esper a;b: env03 rollback\x1b\\\a"
    assert made("osc777") == "\x1b]777;notify;esper a,b;env03 rollback\x1b\\\a"
    assert made("osc99") == (
        "\x1b]99;i=esper-1:d=0;esper a;b\x1b\\\x1b]99;i=esper-1:p=body;env03 rollback\x1b\\\a"
    )
    wrapped = "\x1bPtmux;\x1b\x1b]9;esper a;b: env03 rollback\x1b\x1b\\\x1b\\\a"
    assert made("osc9", wrapped=True) == wrapped


@given(st.text(), st.text(), st.sampled_from([c for c in CHOICES if c.startswith("osc")]))
def test_no_text_steers_the_terminal(title: str, text: str, form: str) -> None:
    found = TerminalNotifier(Outlet(form)).sequence(title, text).removesuffix("\a")
    inside = found.replace("\x1b]", "").replace("\x1b\\", "")
    assert inside.isprintable()
    assert found.count("\x1b") == (4 if form == "osc99" else 2)


@pytest.mark.parametrize(("hour", "is_quiet"), [(21, False), (22, True), (3, True), (7, False), (12, False)])
def test_quiet_hours_reach_over_midnight(hour: int, is_quiet: bool) -> None:
    found = TerminalNotifier(quiet=NIGHT).sequence("a", "b", datetime(2026, 11, 22, hour))
    assert found == ("" if is_quiet else "\a")


def test_quiet_hours_of_a_day() -> None:
    lunch = parse_quiet_hours("12:00-13:30")
    assert [lunch.holds(time(h, 15)) for h in (11, 12, 13, 14)] == [False, True, True, False]
    assert parse_quiet_hours(" 22:00-7:00 ") == NIGHT


@pytest.mark.parametrize(
    "text", ["", "22-7", "24:00-07:00", "22:60-07:00", "07:00-07:00", "22:00", "\x1b[2J"]
)
def test_bad_quiet_hours_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"time of day|begins when it ends") as error:
        parse_quiet_hours(text)
    assert str(error.value).isprintable()
