"""The bell and the notifications of the terminal's desktop, by escape sequences; silent in quiet hours.

OSC 9 is that of iTerm2, WezTerm and Ghostty, OSC 777 that of foot and rxvt-unicode, OSC 99 that of kitty.
tmux hands such a sequence to the terminal around it where its option `allow-passthrough` is on, wrapped in
one of its own; elsewhere only the bell is rung. GNU screen hands none on.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from typing import NamedTuple

from esper_overwatch.protocol.codec.text import clean_text

BELL = "\a"
MAX_TEXT = 200
TMUX_SECONDS = 2.0
CHOICES = ("auto", "off", "bell", "osc9", "osc777", "osc99")
_ESC, _END = "\x1b", "\x1b\\"
_BY_PROGRAM = {"iTerm.app": "osc9", "WezTerm": "osc9", "ghostty": "osc9"}
_BY_NAME = {
    "kitty": "osc99",
    "iterm": "osc9",
    "wezterm": "osc9",
    "ghostty": "osc9",
    "foot": "osc777",
    "rxvt": "osc777",
}
"""Form by a part of what TERM, or the terminal itself, says."""
_PERIOD = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


class QuietHours(NamedTuple):
    """A part of each day, by the local clock; over midnight where it ends before it begins."""

    begin: time
    end: time

    def holds(self, now: time) -> bool:
        """True if a time of day lies within."""
        if self.begin <= self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end


def parse_quiet_hours(text: str) -> QuietHours:
    """`22:00-07:00`.

    Raises:
        ValueError: it is not of that form, or is empty.
    """
    found = _PERIOD.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{clean_text(text)!r} is not a time of day, such as 22:00-07:00")
    hours = QuietHours(time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4])))
    if hours.begin == hours.end:
        raise ValueError(f"{text.strip()!r} begins when it ends")
    return hours


def chosen_quiet_hours(setting: str) -> QuietHours | None:
    """The hours of a setting; None for `off`."""
    return None if setting == "off" else parse_quiet_hours(setting)


class Outlet(NamedTuple):
    """The way in which this terminal is notified."""

    form: str
    """`off`, `bell`, `osc9`, `osc777` or `osc99`."""
    is_wrapped: bool = False
    """True if tmux stands between the program and the terminal."""


ONLY_BELL = Outlet("bell")
RunCommand = Callable[[list[str]], str]
"""Runs a command and returns its output, which is empty where it fails."""


def ask_command(command: list[str]) -> str:
    """Run a short command."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=TMUX_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout if found.returncode == 0 else ""


def choose_outlet(choice: str, environment: Mapping[str, str], ask: RunCommand = ask_command) -> Outlet:
    """Outlet that a choice means in this terminal; `ask` runs tmux, which knows the terminal around it."""
    if choice in ("off", "bell"):
        return Outlet(choice)
    if "TMUX" in environment:
        if ask(["tmux", "show-options", "-Apv", "allow-passthrough"]).strip() not in ("on", "all"):
            return ONLY_BELL
        around = ask(["tmux", "display-message", "-p", "#{client_termname} #{client_termtype}"])
        form = _form_by_name(around) if choice == "auto" else choice
        return Outlet(form, is_wrapped=form != "bell")
    if "STY" in environment:
        return ONLY_BELL
    if choice != "auto":
        return Outlet(choice)
    if "KITTY_WINDOW_ID" in environment:
        return Outlet("osc99")
    program = _BY_PROGRAM.get(environment.get("TERM_PROGRAM", ""))
    names = f"{environment.get('LC_TERMINAL', '')} {environment.get('TERM', '')}"
    return Outlet(program or _form_by_name(names))


def _form_by_name(name: str) -> str:
    return next((form for part, form in _BY_NAME.items() if part in name.lower()), "bell")


@dataclass
class TerminalNotifier:
    """Makes the bytes that notify of something, but not in the `quiet` hours (None = there are none)."""

    outlet: Outlet = ONLY_BELL
    quiet: QuietHours | None = None
    _count: int = 0

    def sequence(self, title: str, text: str, now: datetime | None = None) -> str:
        """Bytes to write to the terminal, bell included; empty in quiet hours and when switched off."""
        if self.outlet.form == "off":
            return ""
        if self.quiet is not None and self.quiet.holds((now or datetime.now()).time()):
            return ""
        self._count += 1
        found = self._notification(clean_text(title)[:MAX_TEXT], clean_text(text)[:MAX_TEXT])
        if self.outlet.is_wrapped:
            found = f"{_ESC}Ptmux;{found.replace(_ESC, _ESC + _ESC)}{_END}"
        return found + BELL

    def _notification(self, title: str, text: str) -> str:
        match self.outlet.form:
            case "osc9":
                return f"{_ESC}]9;{title}: {text}{_END}"
            case "osc777":
                return f"{_ESC}]777;notify;{title.replace(';', ',')};{text.replace(';', ',')}{_END}"
            case "osc99":
                id_ = f"esper-{self._count}"
                return f"{_ESC}]99;i={id_}:d=0;{title}{_END}{_ESC}]99;i={id_}:p=body;{text}{_END}"
        return ""
