"""The help: the fields of the view one is in and how to diagnose, then all keys; made from tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from esper_overwatch.overwatch_tui import keys as key_table
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme
from esper_overwatch.overwatch_tui.render.view_state import ViewState

from .page import PageScreen

LEGEND: tuple[tuple[str, str], ...] = (
    ("--", "not measured (not the same as zero)"),
    ("LIVE", "age of the last heartbeat; SLOW from 2 s, STALE from 5 s, LOST from 15 s"),
    ("gap lost bad", "holes in the stream; events dropped or skipped; frames that could not be read"),
)
"""Fields that every view has."""
_NO_ARROWS = str.maketrans("", "", "↓↑←→")
_NAME = 16
"""Columns of the name of a field."""


def help_lines(
    width: int,
    glyphs: Glyphs,
    *,
    read_only: bool,
    chosen_keys: Sequence[key_table.Key] = key_table.KEYS,
    panel: str = "envs",
    is_published: bool = False,
) -> list[Line]:
    """Meaning of a panel's fields and hints for a diagnosis; then all keys by group."""
    lines = [
        Row().put(" ESPER OVERWATCH ", "title").put("  j k scroll, Esc closes", "dim").line(width),
        EMPTY,
        *_panel_lines(panel, width),
    ]
    for group, keys in key_table.grouped_keys(chosen_keys, read_only=read_only).items():
        lines.append(Row().put(f" {group}", "bold").line(width))
        rows = [(key.shown, key.help) for key in keys]
        if group == key_table.VIEWS_GROUP:
            rows.insert(0, _views_help(is_published=is_published))
        for shown, text in rows:
            if glyphs.name == "ascii":
                shown = shown.translate(_NO_ARROWS)
            lines.append(Row().put("   ").put(shown, "key", 10).put(text).line(width))
        lines.append(EMPTY)
    return sign_cuts(lines, glyphs.cut)


def _panel_lines(panel: str, width: int) -> list[Line]:
    """The fields of the panel and of every view, and the symptoms of faults."""
    about = FIELD_HELP.get(panel)
    fields = (*(about.fields if about is not None else ()), *LEGEND)
    lines = [Row().put(f" {panel}", "bold").line(width)]
    lines += [line for name, text in fields for line in _explained(name, text, width)]
    lines.append(EMPTY)
    if about is not None and about.diagnosis:
        lines.append(Row().put(" what one sees, and where to look", "bold").line(width))
        lines += [line for name, text in about.diagnosis for line in _explained(name, text, width)]
        lines.append(EMPTY)
    return lines


def _explained(name: str, text: str, width: int) -> list[Line]:
    """A name and its meaning, wrapped; a long name has a line of its own."""
    parts = textwrap.wrap(text, max(20, width - _NAME - 4))
    if len(name) >= _NAME:
        head = [Row().put(f"   {name}", "accent").line(width)]
        return [*head, *(Row().put("   ").to(_NAME + 3).put(part, "dim").line(width) for part in parts)]
    rows = [Row().put("   ").put("" if i else name, "accent", _NAME) for i in range(len(parts))]
    return [row.put(part, "dim").line(width) for row, part in zip(rows, parts, strict=True)]


def _views_help(*, is_published: bool) -> tuple[str, str]:
    """(keys, names) of all views that a run of this kind has."""
    views = PANELS.of(is_published=is_published).views
    return "".join(view.key for view in views), " ".join(view.name for view in views)


class HelpScreen(PageScreen):
    """The help, which explains this panel first."""

    def __init__(self, theme: Theme, view: ViewState, panel: str, *, is_published: bool = False) -> None:
        super().__init__(theme)
        self._view = view
        self._about = panel
        self._is_published = is_published

    def page(self, width: int) -> list[Line]:
        view = self._view
        return help_lines(
            width,
            view.glyphs,
            read_only=view.read_only,
            chosen_keys=view.keys,
            panel=self._about,
            is_published=self._is_published,
        )
