"""The help: all keys, from the tables of keys and panels, and how to read the screen."""

from __future__ import annotations

from collections.abc import Sequence

from overwatch_tui import keys as key_table
from overwatch_tui.panels import PANELS
from overwatch_tui.render.lines import EMPTY, Line, Row
from overwatch_tui.render.theme import Glyphs, Theme

from .page import PageScreen

LEGEND: tuple[tuple[str, str], ...] = (
    ("ST", "ok, WARN, CRIT; STAL no progress; ROLL rolled back by the governor; -- no data"),
    ("ACC dACC", "validation accuracy in percent, and its change since the epoch before in points"),
    ("RETURN", "sum of rewards in this episode"),
    ("GRAD", "L2 norm of the host's gradient"),
    ("DRIFT", "|norm - average| / average; ? and ! = the daemon raised a warning, a critical alarm"),
    ("slots", ". dormant  G germinated  T training  B blending  H holding  F fossilized"),
    ("", "P pruned  E embargoed  R resetting; a number = epochs in the stage, .7 = alpha"),
    ("--", "not measured (not the same as zero)"),
    ("LIVE", "age of the last heartbeat; SLOW from 2 s, STALE from 5 s, LOST from 15 s"),
    ("gap lost bad", "holes in the stream; events dropped or skipped; frames that could not be read"),
)


def help_lines(
    width: int, glyphs: Glyphs, *, read_only: bool, chosen_keys: Sequence[key_table.Key] = key_table.KEYS
) -> list[Line]:
    """All keys by group, then what the columns of the panels mean."""
    lines = [
        Row().put(" ESPER OVERWATCH ", "title").put("  j k scroll, Esc closes", "dim").line(width),
        EMPTY,
    ]
    for group, keys in key_table.grouped_keys(chosen_keys, read_only=read_only).items():
        lines.append(Row().put(f" {group}", "bold").line(width))
        rows = [(key.shown, key.help) for key in keys]
        if group == key_table.VIEWS_GROUP:
            rows.insert(0, _views_help())
        for shown, text in rows:
            if glyphs.name == "ascii":
                shown = shown.replace("↓", "").replace("↑", "")
            lines.append(Row().put("   ").put(shown, "key", 10).put(text).line(width))
        lines.append(EMPTY)
    lines.append(Row().put(" how to read the screen", "bold").line(width))
    for name, text in LEGEND:
        lines.append(Row().put("   ").put(name, "accent", 14).put(text, "dim").line(width))
    return lines


def _views_help() -> tuple[str, str]:
    """(keys, names) of all views."""
    views = PANELS.views
    return f"{views[0].key}..{views[-1].key}", ", ".join(panel.tab[1].lower() for panel in views)


class HelpScreen(PageScreen):
    """The help.

    Args:
        theme: for the lines.
        glyphs: for the arrows.
        chosen_keys: as the operator has chosen them.
        read_only: whether commands are left out.
    """

    def __init__(
        self, theme: Theme, glyphs: Glyphs, chosen_keys: Sequence[key_table.Key], *, read_only: bool
    ) -> None:
        super().__init__(theme)
        self._keys = chosen_keys
        self._glyphs = glyphs
        self._read_only = read_only

    def page(self, width: int) -> list[Line]:
        return help_lines(width, self._glyphs, read_only=self._read_only, chosen_keys=self._keys)
