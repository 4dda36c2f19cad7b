"""The help: all keys, made from the table of keys, and how to read the screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from .. import keys as key_table
from ..lines import EMPTY, Line, Row
from ..theme import Glyphs, Theme
from ..widgets.line_panel import LinePanel

LEGEND: tuple[tuple[str, str], ...] = (
    ("ST", "ok, WARN, CRIT; STAL no better for long; ROLL rolled back by the governor; -- not heard of"),
    ("ACC dACC", "validation accuracy in percent, and its change since the epoch before in points"),
    ("RETURN", "sum of rewards since the episode began"),
    ("GRAD", "L2 norm of the host's gradient"),
    ("DRIFT", "|norm - average| / average; ? and ! where the daemon raised a warning, a critical alarm"),
    ("slots", ". dormant  G germinated  T training  B blending  H holding  F fossilized"),
    ("", "P pruned  E embargoed  R resetting; a number = epochs in the stage, .7 = alpha"),
    ("--", "not measured, which is not zero"),
    ("LIVE", "age of the last heartbeat; SLOW from 2 s, STALE from 5 s, LOST from 15 s"),
    ("gap lost bad", "holes in the stream, events refused or passed over, frames that could not be read"),
)


def help_lines(width: int, glyphs: Glyphs, *, read_only: bool) -> list[Line]:
    """Everything, in two columns of keys where they fit."""
    lines = [
        Row().put(" ESPER OVERWATCH ", "title").put("  j k scroll, Esc closes", "dim").line(width),
        EMPTY,
    ]
    for group, keys in key_table.groups(read_only=read_only).items():
        lines.append(Row().put(f" {group}", "bold").line(width))
        for key in keys:
            shown = key.shown if glyphs.name == "unicode" else key.shown.replace("↓", "").replace("↑", "")
            lines.append(Row().put("   ").put(shown, "key", 10).put(key.help).line(width))
        lines.append(EMPTY)
    lines.append(Row().put(" how to read it", "bold").line(width))
    for name, text in LEGEND:
        lines.append(Row().put("   ").put(name, "accent", 14).put(text, "dim").line(width))
    return lines


class HelpScreen(ModalScreen[None]):
    """The help, scrolled by the keys that move everywhere else.

    Args:
        theme: for the lines.
        glyphs: for the arrows.
        read_only: whether commands are left out.
    """

    AUTO_FOCUS = ""
    BINDINGS = [  # noqa: RUF012
        ("escape,question_mark,f1,q,enter", "close", ""),
        ("j,down", "scroll_by(1)", ""),
        ("k,up", "scroll_by(-1)", ""),
        ("pagedown,space", "scroll_by(15)", ""),
        ("pageup", "scroll_by(-15)", ""),
        ("g,home", "scroll_by(-1000)", ""),
        ("G,end", "scroll_by(1000)", ""),
    ]

    def __init__(self, theme: Theme, glyphs: Glyphs, *, read_only: bool) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="help")
        self._glyphs = glyphs
        self._read_only = read_only
        self.top = 0
        """First line shown."""

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        lines = help_lines(width, self._glyphs, read_only=self._read_only)
        self.top = max(0, min(self.top, len(lines) - height))
        self._panel.show(lines[self.top : self.top + height])

    def action_scroll_by(self, rows: int) -> None:
        self.top += rows
        self._draw()

    def action_close(self) -> None:
        self.dismiss()
