"""Every key: the bindings, the footer and the help screen are made from this one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key, or several that do the same."""

    keys: str
    """Textual's names, separated by commas."""
    shown: str
    """How the help writes them."""
    action: str
    help: str
    group: str
    hint: str = ""
    """Word in the footer; empty = not shown there."""

    @property
    def command(self) -> bool:
        """Whether it steers the run: gone with --read-only."""
        return self.group == _STEER


_STEER = "commands (each asks y/N)"

_DIGITS = tuple(Key(str(i), "", f"digit({i})", "", "") for i in range(10))
"""Views, and the digits of an env's number."""

KEYS: tuple[Key, ...] = (
    Key("question_mark,f1", "? F1", "help", "this page", "leave and help", "help"),
    Key("q", "q", "leave", "leave the terminal; the run goes on", "leave and help", "quit"),
    Key("ctrl+c", "^C ^C", "help_quit", "twice: leave", "leave and help"),
    Key("ctrl+z", "^Z", "suspend_process", "into the background; `fg` comes back", "leave and help"),
    Key("", "1..8", "", "main, anomalies, drift, policy, seeds, log, commands, system", "views"),
    Key("tab", "Tab", "next_panel(1)", "next panel, or next view where there is one panel", "views"),
    Key("shift+tab", "S-Tab", "next_panel(-1)", "the one before", "views"),
    Key("enter", "Enter", "enter", "detail of what is selected", "views", "detail"),
    Key("escape", "Esc", "step_back", "one step back", "views"),
    Key("j,down", "j ↓", "move(1)", "down", "move"),
    Key("k,up", "k ↑", "move(-1)", "up", "move"),
    Key("g,home", "g", "move(-1000000)", "first row", "move"),
    Key("G,end", "G", "move(1000000)", "last row", "move"),
    Key("pagedown", "PgDn", "page(1)", "a page down", "move"),
    Key("pageup", "PgUp", "page(-1)", "a page up", "move"),
    Key("left_curly_bracket", "{", "env(-1)", "previous env", "move"),
    Key("right_curly_bracket", "}", "env(1)", "next env", "move"),
    Key("e", "e 0..9", "type_env", "env by its number", "move"),
    Key("n", "n", "anomaly(1)", "next anomaly that is not acknowledged", "anomalies"),
    Key("N", "N", "anomaly(-1)", "the one before", "anomalies"),
    Key("a", "a", "ack", "acknowledge it (here only)", "anomalies", "ack"),
    Key("A", "A", "ack_all", "acknowledge all", "anomalies"),
    Key("m", "m", "mute", "silence it for 10 minutes, or no longer", "anomalies"),
    Key("s", "s", "sort", "next order of the envs", "looks", "sort"),
    Key("S", "S", "reverse", "the other way round", "looks"),
    Key("v", "v", "mode", "envs as table or grid", "looks", "view"),
    Key("f", "f", "facet", "log: all, no seeds, warnings, commands", "looks"),
    Key("plus,equals_sign", "+", "zoom(-1)", "narrower window of time", "looks"),
    Key("minus", "-", "zoom(1)", "wider window of time", "looks"),
    Key("space", "Space", "freeze", "stop the picture; events are still collected", "looks", "freeze"),
    Key("r", "r", "rate", "pictures per second: 0.5, 1, 2, 4", "looks"),
    Key("u", "u", "glyphs", "unicode or ASCII", "looks"),
    Key("f8", "F8", "shot", "screenshot as SVG and as text into this folder", "looks"),
    Key("T", "T", "escalate", "escalate telemetry to DEBUG for 5 epochs", _STEER, "escalate"),
    Key("P", "P", "profile", "record a profile of 2 epochs, or stop recording", _STEER, "profile"),
    Key("X", "X", "pause", "pause the training, or resume it", _STEER, "pause"),
    Key("C", "C", "checkpoint", "save a checkpoint now", _STEER, "checkpoint"),
    Key("ctrl+x", "^X", "stop", "stop the run, after a checkpoint", _STEER),
)  # fmt: skip
"""Grouped, in the order of the help."""

FOOTER = ("help", "detail", "escalate", "profile", "pause", "checkpoint", "ack", "freeze", "sort", "view")
"""Hints in the order in which they must fit; quit is always there."""


COMMANDS = frozenset(key.action for key in KEYS if key.command)
"""Actions that --read-only takes away."""


def bindings() -> list[tuple[str, str]]:
    """(key names, action of the app) of everything that can be pressed."""
    return [(key.keys, f"app.{key.action}") for key in (*KEYS, *_DIGITS) if key.keys]


def groups(*, read_only: bool) -> dict[str, list[Key]]:
    """The keys by group, as the help shows them."""
    found: dict[str, list[Key]] = {}
    for key in KEYS:
        if not (read_only and key.command):
            found.setdefault(key.group, []).append(key)
    return found


def hints(*, read_only: bool) -> list[tuple[str, str]]:
    """(key, word) for the footer."""
    by_hint = {k.hint: k for k in KEYS if k.hint and not (read_only and k.command)}
    return [(by_hint[name].shown.split(" ")[0], name) for name in FOOTER if name in by_hint]
