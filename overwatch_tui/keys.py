"""All keys but those of the views: bindings, footer and help screen are made from this table.

The keys of the views stand in the table of panels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key, or several that do the same."""

    keys: str
    """Textual's names, separated by commas."""
    shown: str
    """Names in the help."""
    action: str
    help: str
    group: str
    hint: str = ""
    """Name in the footer; empty = not shown there."""

    @property
    def is_command(self) -> bool:
        """True if the key sends a command; --read-only removes it."""
        return self.group == _STEER


VIEWS_GROUP = "views"
COMMAND_ACTION = "ask"
"""Action of the keys that send a command: --read-only takes it away."""
_CHARTS = "charts"
_STEER = "commands (each asks y/N)"
_TIME = "time"

_DIGITS = tuple(Key(str(i), "", f"digit({i})", "", "") for i in range(10))
"""Digits, which show a view or type an env's number."""

KEYS: tuple[Key, ...] = (
    Key("question_mark,f1", "? F1", "help", "this page", "leave and help", "help"),
    Key("q", "q", "leave", "leave the terminal; the run continues", "leave and help", "quit"),
    Key("ctrl+c", "^C ^C", "help_quit", "leave, pressed twice", "leave and help"),
    Key("ctrl+z", "^Z", "suspend_process", "suspend the terminal; `fg` resumes it", "leave and help"),
    Key("ctrl+l", "^L", "redraw", "draw the whole screen again", "leave and help"),
    Key("R", "R", "runs", "all runs: open another one, live or ended", VIEWS_GROUP),
    Key("tab", "Tab", "next_panel(1)", "next panel, or next view where there is one panel", VIEWS_GROUP),
    Key("shift+tab", "S-Tab", "next_panel(-1)", "previous panel or view", VIEWS_GROUP),
    Key("enter", "Enter", "enter", "detail of the selected row", VIEWS_GROUP, "detail"),
    Key("escape", "Esc", "step_back", "one step back", VIEWS_GROUP),
    Key("j,down", "j ↓", "move(1)", "down", "move"),
    Key("k,up", "k ↑", "move(-1)", "up", "move"),
    Key("g,home", "g", "first_row", "first row", "move"),
    Key("G", "G", "move(1000000)", "last row", "move"),
    Key("pagedown", "PgDn", "page(1)", "a page down", "move"),
    Key("pageup", "PgUp", "page(-1)", "a page up", "move"),
    Key("left_curly_bracket", "{", "env(-1)", "previous env", "move"),
    Key("right_curly_bracket", "}", "env(1)", "next env", "move"),
    Key("e", "e 0..9", "type_env", "select an env by its number", "move"),
    Key(
        "space",
        "Space",
        "freeze",
        "freeze this moment, or go on; events are still collected",
        _TIME,
        "freeze",
    ),
    Key("comma", ",", "step_epochs(-1)", "an epoch back", _TIME),
    Key("full_stop", ".", "step_epochs(1)", "an epoch forward", _TIME),
    Key("left_square_bracket", "[", "step_incidents(-1)", "back to where an incident began", _TIME),
    Key("right_square_bracket", "]", "step_incidents(1)", "forward to where one began", _TIME),
    Key("t", "g t", "go_to", "go to a time or a round: 14:05, -10m, r17, r17e4", _TIME),
    Key("end", "0 End", "to_end", "back to live; of a recording, to its end", _TIME),
    Key("less_than_sign", "<", "speed(-1)", "play a recording slower, down to half its speed", _TIME),
    Key("greater_than_sign", ">", "speed(1)", "play it faster, up to 100 times or as fast as it can", _TIME),
    Key("n", "n", "incident(1)", "guide of the worst incident, then of the next", "incidents"),
    Key("N", "N", "incident(-1)", "guide of the incident before", "incidents"),
    Key("a", "a", "ack", "acknowledge it, for all viewers", "incidents", "ack"),
    Key("A", "A", "ack_all", "acknowledge all", "incidents"),
    Key("m", "m", "mute", "mute it for 10 minutes, or unmute it, for all", "incidents"),
    Key("U", "U", "ask_undo", "undo the change that it is suspected to follow", "incidents"),
    Key("s", "s", "sort", "sort the envs by the next column", "display", "sort"),
    Key("S", "S", "reverse", "reverse the order", "display"),
    Key("slash", "/", "filter", "filter the list, such as acc<60 st:roll", "display", "filter"),
    Key("v", "v", "env_layout", "envs as table or grid", "display", "view"),
    Key("f", "f", "log_filter", "log: all, no seeds, warnings, commands", "display"),
    Key("plus,equals_sign", "+", "zoom(-1)", "shorter time window", "display"),
    Key("minus", "-", "zoom(1)", "longer time window", "display"),
    Key("h,left", "h ←", "inspect(-1)", "charts: cursor to the left; at the edge, back in time", _CHARTS),
    Key("l,right", "l →", "inspect(1)", "charts: cursor to the right; Esc lets go of it", _CHARTS),
    Key("H", "H", "inspect(-10)", "ten columns to the left", _CHARTS),
    Key("L", "L", "inspect(10)", "ten columns to the right", _CHARTS),
    Key("y", "y", "log_axis", "logarithmic or linear axis", _CHARTS),
    Key("x", "x", "axis", "by step (epoch, round), elapsed time, or the clock", _CHARTS),
    Key("w", "w", "smooth", "smoothing: off, 0.6, 0.9", _CHARTS),
    Key("o", "o", "overlay", "overlay: off, all envs or heads, their quantiles", _CHARTS),
    Key("p", "p", "pin", "pin this chart to your own page, or unpin it", _CHARTS),
    Key("r", "r", "rate", "frames per second: 0.5, 1, 2, 4", "display"),
    Key("u", "u", "glyphs", "Unicode or ASCII characters", "display"),
    Key("f2", "F2", "settings", "settings: values, meaning, where they come from; change them", "display"),
    Key("ctrl+t", "^T", "theme", "next theme of colours", "display"),
    Key("E", "E", "export", "write this table or chart: CSV, JSON, SVG, text", "display"),
    Key("f8", "F8", "write_screen", "write the screen as SVG and text into this folder", "display"),
    Key("colon,ctrl+p", ": ^P", "command_line", "type any command or question for the daemon", "move"),
    Key("T", "T", "ask('escalate')", "escalate telemetry to DEBUG for 5 epochs", _STEER, "escalate"),
    Key("P", "P", "ask('profile')", "record a profile of 2 epochs, or stop recording", _STEER, "profile"),
    Key("X", "X", "ask('pause')", "pause the training, or resume it", _STEER, "pause"),
    Key("C", "C", "ask('checkpoint')", "save a checkpoint now", _STEER, "checkpoint"),
    Key("c", "c", "call", "of a published run: choose one of its loop's commands", _STEER, "call"),
    Key("ctrl+x", "^X", "ask('stop')", "stop the run, after a checkpoint", _STEER),
)
"""Grouped, in the order of the help."""

FOOTER = (
    "help",
    "detail",
    "escalate",
    "profile",
    "pause",
    "checkpoint",
    "call",
    "ack",
    "freeze",
    "sort",
    "filter",
    "view",
)
"""Hints in the order in which they must fit; quit is always there."""


def bindings(keys: Sequence[Key] = KEYS) -> list[tuple[str, str]]:
    """(key names, action of the app) of everything that can be pressed."""
    return [(key.keys, f"app.{key.action}") for key in (*keys, *_DIGITS)]


def grouped_keys(keys: Sequence[Key] = KEYS, *, read_only: bool) -> dict[str, list[Key]]:
    """The keys by group, as the help shows them."""
    found: dict[str, list[Key]] = {}
    for key in keys:
        if not (read_only and key.is_command):
            found.setdefault(key.group, []).append(key)
    return found


def footer_hints(
    keys: Sequence[Key] = KEYS, *, read_only: bool, missing: Collection[str] = ()
) -> list[tuple[str, str]]:
    """(key, name) for the footer, without the names in `missing`."""
    hinted = [k for k in keys if k.hint and k.hint not in missing]
    by_hint = {k.hint: k for k in hinted if not (read_only and k.is_command)}
    return [(by_hint[name].shown.split(" ")[0], name) for name in FOOTER if name in by_hint]


def shown_key(keys: Sequence[Key], action: str) -> str:
    """Name of the first key of an action."""
    return next(key.shown.split(" ")[0] for key in keys if key.action == action)
