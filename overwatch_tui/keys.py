"""All actions, those with keys first: bindings, footer, palette and help are made from this table.

The keys of the views stand in the table of panels; an action without a key is executed by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NAMES = {
    "move(1)": "down",
    "move(-1)": "up",
    "move(1000000)": "last_row",
    "page(1)": "page_down",
    "page(-1)": "page_up",
    "inspect(-1)": "inspect_left",
    "inspect(1)": "inspect_right",
    "inspect(-10)": "inspect_far_left",
    "inspect(10)": "inspect_far_right",
    "zoom(-1)": "zoom_in",
    "zoom(1)": "zoom_out",
    "write_screen": "screenshot",
    "speed(-1)": "slower",
    "speed(1)": "faster",
}
"""Actions whose names are not made of the action itself."""
_DIRECTIONS = {"1": "next", "-1": "previous"}


@dataclass(frozen=True)
class Key:
    """An action, and the key or keys that do it."""

    keys: str
    """Textual's names, separated by commas; empty = none, unless the settings give it one."""
    shown: str
    """Names in the help."""
    action: str
    help: str
    hint: str = ""
    """Name in the footer; empty = not shown there."""
    values: tuple[str, ...] = ()
    """Values that its name is followed by, of which one has to be given; `...` = any text."""

    @property
    def is_command(self) -> bool:
        """True if the key sends a command; --read-only removes it."""
        return self.action.startswith(COMMAND_ACTION)

    @property
    def name(self) -> str:
        """Name in the palette and the settings: `freeze`, `next_incident`, `escalate`."""
        if self.action in NAMES:
            return NAMES[self.action]
        found = re.fullmatch(r"(\w+)\((.*)\)", self.action)
        if found is None:
            return self.action.removeprefix(f"{COMMAND_ACTION}_")
        action, argument = found[1], found[2].strip("'\"")
        if action == COMMAND_ACTION:
            return argument
        return f"{_DIRECTIONS.get(argument, argument)}_{action.removeprefix('next_')}"


COMMAND_ACTION = "ask"
"""Beginning of the actions that send a command: --read-only takes them away."""
ANY_TEXT = "..."

_DIGITS = tuple(Key(str(i), "", f"digit({i})", "") for i in range(10))
"""Digits, which show a view."""
_OF_TERMINALS = (
    Key("ctrl+c", "", "help_quit", ""),
    Key("ctrl+z", "", "suspend_process", ""),
    Key("ctrl+l", "", "redraw", ""),
)
"""What these mean in every program of a terminal: leave (pressed twice), suspend, draw again."""

ACTIONS: tuple[Key, ...] = (
    Key("question_mark,f1", "? F1", "help", "meaning of this view's fields, and what can be done", "help"),
    Key("q", "q", "leave", "leave the terminal; the run continues"),
    Key("colon,ctrl+p", ": ^P", "palette", "search and execute any action, setting, command or question"),
    Key("R", "R", "runs", "all runs: open another one, live or ended"),
    Key("tab", "Tab", "next_panel(1)", "next panel of the view; of a view with one panel the next view"),
    Key("enter", "Enter", "enter", "detail of the selected row, then its charts", "detail"),
    Key("escape", "Esc", "step_back", "one step back"),
    Key("j,down", "j ↓", "move(1)", "down"),
    Key("k,up", "k ↑", "move(-1)", "up"),
    Key("g,home", "g", "first_row", "first row"),
    Key("G", "G", "move(1000000)", "last row"),
    Key("pagedown", "PgDn", "page(1)", "a page down"),
    Key("pageup", "PgUp", "page(-1)", "a page up"),
    Key("h,left", "h ←", "inspect(-1)", "charts: cursor to the left; at the edge, back in time"),
    Key("l,right", "l →", "inspect(1)", "charts: cursor to the right; Esc lets go of it"),
    Key("space", "Space", "freeze", "freeze this moment, or go on; events are still collected", "freeze"),
    Key("comma", ",", "step_epochs(-1)", "an epoch back"),
    Key("full_stop", ".", "step_epochs(1)", "an epoch forward"),
    Key("left_square_bracket", "[", "step_incidents(-1)", "back to where an incident began"),
    Key("right_square_bracket", "]", "step_incidents(1)", "forward to where one began"),
    Key("n", "n", "incident(1)", "guide of the worst incident, then of the next"),
    Key("a", "a", "ack", "acknowledge the incident, for all viewers", "ack"),
    Key(
        "s",
        "s",
        "sort",
        "turn the order of the rows round, then sort by the next column; save open charts as SVG and CSV",
        "sort",
    ),
    Key("slash", "/", "filter", "filter the list, such as acc<60 st:roll", "filter"),
    Key(
        "T",
        "T",
        "ask('escalate')",
        "escalate telemetry to DEBUG for 5 epochs; on an env's page its own",
        "escalate",
    ),
    Key("P", "P", "ask('profile')", "record a profile of 2 epochs, or stop recording", "profile"),
    Key("X", "X", "ask('pause')", "pause the training, or resume it", "pause"),
    Key("C", "C", "ask('checkpoint')", "save a checkpoint now", "checkpoint"),
    Key("U", "U", "ask_undo", "undo the change that the incident is suspected to follow"),
    Key("ctrl+x", "^X", "ask('stop')", "stop the run, after a checkpoint"),
    Key("", "", "go_to", "go to a time or a round: 14:05, -10m, r17, r17e4", values=(ANY_TEXT,)),
    Key("", "", "to_end", "back to live; of a recording, to its end"),
    Key("", "", "speed(-1)", "play a recording slower, down to half its speed"),
    Key("", "", "speed(1)", "play it faster, up to 100 times or as fast as it can"),
    Key("", "", "incident(-1)", "guide of the incident before"),
    Key("", "", "ack_all", "acknowledge all incidents"),
    Key("", "", "mute", "mute the incident for 10 minutes, or unmute it, for all"),
    Key(
        "",
        "",
        "show",
        "show a panel: drift, layers, decisions, curves, log, commands, profile, pins",
        values=(ANY_TEXT,),
    ),
    Key(
        "", "", "env", "open the page of an env by its number; the number alone is enough", values=(ANY_TEXT,)
    ),
    Key("", "", "next_panel(-1)", "panel before this one"),
    Key("", "", "zoom(-1)", "charts: a shorter time"),
    Key("", "", "zoom(1)", "charts: a longer time"),
    Key("", "", "axis", "charts: by step (epoch, round), elapsed time, or the clock"),
    Key("", "", "log_axis", "charts: logarithmic or linear axis"),
    Key("", "", "smooth", "charts: smoothing off, 0.6, 0.9"),
    Key("", "", "overlay", "charts: overlay off, or all envs or heads"),
    Key("", "", "pin", "pin this chart to your own page, or unpin it"),
    Key("", "", "inspect(-10)", "charts: cursor ten columns to the left"),
    Key("", "", "inspect(10)", "charts: cursor ten columns to the right"),
    Key("", "", "export", "write this table or chart into a file", values=("csv", "json", "svg", "txt")),
    Key("", "", "write_screen", "write the screen as SVG and text into this folder"),
)
"""Those with keys in the order of the help."""
KEYS = tuple(key for key in ACTIONS if key.keys)

FOOTER = (
    "help",
    "detail",
    "escalate",
    "profile",
    "pause",
    "checkpoint",
    "ack",
    "freeze",
    "sort",
    "filter",
)
"""Hints in the order in which they must fit; palette and quit are always there."""


def bindings() -> list[tuple[str, str, str]]:
    """(key names, action of the app, name) of all that can be pressed or given a key by a keymap."""
    return [
        (
            key.keys or f"none_{key.name}",
            f"app.palette('{key.name} ')" if key.values else f"app.{key.action}",
            key.name,
        )
        for key in (*ACTIONS, *_OF_TERMINALS, *_DIGITS)
    ]


def footer_hints(
    keys: Sequence[Key] = ACTIONS, *, read_only: bool, missing: Collection[str] = ()
) -> list[tuple[str, str]]:
    """(key, name) for the footer, without the names in `missing`."""
    hinted = [k for k in keys if k.hint and k.shown and k.hint not in missing]
    by_hint = {k.hint: k for k in hinted if not (read_only and k.is_command)}
    return [(by_hint[name].shown.split(" ")[0], name) for name in FOOTER if name in by_hint]


def shown_key(keys: Sequence[Key], action: str) -> str:
    """Name of the first key of an action."""
    return next(key.shown.split(" ")[0] for key in keys if key.action == action)
