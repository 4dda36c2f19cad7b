"""Themes: colours by the name of a style, from the 256 that nearly every terminal has, or from its first 16.

Plain text and the background are the terminal's own, so that a piece of text takes an escape sequence of ten
bytes instead of forty. Each theme names the backgrounds that it is made for: on them all text has a contrast
of at least 4.5 to 1 (WCAG 2.1), which a test computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Palette(NamedTuple):
    """A theme."""

    backgrounds: tuple[str, ...]
    """Backgrounds that it is made for, darkest and lightest."""
    on_bar: str
    """Plain text where the theme sets the background: the terminal's own may not be legible there."""
    styles: Mapping[str, str]
    """Styles in Rich's notation, by name."""


_BLACK = ("#000000", "#1e1e1e")
_WHITE = ("#ffffff", "#eeeeee")
_DARK = {
    "bold": "bold",
    "dim": "color(247)",
    "faint": "color(246)",
    "title": "bold color(75)",
    "rule": "color(239)",
    "focus": "color(75)",
    "key": "color(179)",
    "accent": "color(73)",
    "ok": "color(71)",
    "warning": "bold color(214)",
    "critical": "bold color(203)",
    "info": "color(110)",
    "chart": "color(74)",
    "chart2": "color(139)",
    "chart3": "color(108)",
    "select": "on color(235)",
    "bar": "on color(235)",
    "alarm": "bold color(231) on color(124)",
    "caution": "bold color(16) on color(214)",
    "tab": "bold color(16) on color(75)",
    "live": "bold color(16) on color(71)",
    "box": "color(75)",
    "dormant": "color(246)",
    "germinated": "color(143)",
    "training": "color(74)",
    "blending": "color(140)",
    "holding": "color(79)",
    "fossilized": "color(71)",
    "pruned": "color(173)",
    "embargoed": "color(138)",
    "resetting": "color(138)",
}
_LIGHT = {
    "bold": "bold",
    "dim": "color(240)",
    "faint": "color(241)",
    "title": "bold color(25)",
    "rule": "color(249)",
    "focus": "color(25)",
    "key": "color(88)",
    "accent": "color(23)",
    "ok": "color(22)",
    "warning": "bold color(94)",
    "critical": "bold color(124)",
    "info": "color(24)",
    "chart": "color(25)",
    "chart2": "color(90)",
    "chart3": "color(22)",
    "select": "on color(254)",
    "bar": "on color(254)",
    "alarm": "bold color(231) on color(124)",
    "caution": "bold color(16) on color(214)",
    "tab": "bold color(231) on color(25)",
    "live": "bold color(231) on color(22)",
    "box": "color(25)",
    "dormant": "color(241)",
    "germinated": "color(58)",
    "training": "color(25)",
    "blending": "color(55)",
    "holding": "color(23)",
    "fossilized": "color(22)",
    "pruned": "color(88)",
    "embargoed": "color(89)",
    "resetting": "color(89)",
}
_HIGH_CONTRAST = {
    **_DARK,
    "dim": "color(253)",
    "faint": "color(252)",
    "title": "bold color(159)",
    "rule": "color(250)",
    "focus": "bold color(159)",
    "key": "bold color(229)",
    "accent": "color(159)",
    "ok": "color(157)",
    "warning": "bold color(227)",
    "critical": "bold color(231) on color(124)",
    "info": "color(195)",
    "chart": "color(159)",
    "chart2": "color(225)",
    "chart3": "color(157)",
    "select": "bold color(16) on color(255)",
    "bar": "color(231) on color(16)",
    "caution": "bold color(16) on color(227)",
    "tab": "bold color(16) on color(231)",
    "live": "bold color(16) on color(157)",
    "box": "color(231)",
    "dormant": "color(252)",
    "germinated": "color(229)",
    "training": "color(159)",
    "blending": "color(225)",
    "holding": "color(158)",
    "fossilized": "color(157)",
    "pruned": "color(223)",
    "embargoed": "color(224)",
    "resetting": "color(224)",
}
_COLOUR_BLIND = {
    **_DARK,
    # Near the eight colours of Okabe and Ito (2008), lighter where the contrast asks for it.
    "accent": "color(75)",
    "ok": "color(75)",
    "warning": "bold color(227)",
    "info": "color(252)",
    "chart": "color(75)",
    "chart2": "color(178)",
    "chart3": "color(175)",
    "alarm": "bold color(16) on color(203)",
    "caution": "bold color(16) on color(227)",
    "live": "bold color(16) on color(252)",
    "germinated": "color(227)",
    "training": "color(75)",
    "blending": "color(178)",
    "holding": "color(36)",
    "fossilized": "color(252)",
    "pruned": "color(208)",
    "embargoed": "color(175)",
    "resetting": "color(175)",
}
_SIXTEEN = {
    "bold": "bold",
    "dim": "color(7)",
    "faint": "color(7)",
    "title": "bold color(14)",
    "rule": "color(8)",
    "focus": "color(14)",
    "key": "color(11)",
    "accent": "color(14)",
    "ok": "color(10)",
    "warning": "bold color(11)",
    "critical": "bold color(9)",
    "info": "color(14)",
    "chart": "color(14)",
    "chart2": "color(13)",
    "chart3": "color(10)",
    "select": "color(0) on color(7)",
    "bar": "color(7) on color(0)",
    "alarm": "bold color(15) on color(1)",
    "caution": "bold color(11)",
    "tab": "color(0) on color(6)",
    "live": "color(0) on color(2)",
    "box": "color(14)",
    "dormant": "color(7)",
    "germinated": "color(11)",
    "training": "color(14)",
    "blending": "color(13)",
    "holding": "color(14)",
    "fossilized": "color(10)",
    "pruned": "color(9)",
    "embargoed": "color(13)",
    "resetting": "color(13)",
}

PALETTES: dict[str, Palette] = {
    "dark": Palette(_BLACK, "color(252)", _DARK),
    "light": Palette(_WHITE, "color(16)", _LIGHT),
    "high-contrast": Palette(_BLACK, "color(231)", _HIGH_CONTRAST),
    "colour-blind": Palette(_BLACK, "color(252)", _COLOUR_BLIND),
    "16-colour": Palette(("#000000",), "color(7)", _SIXTEEN),
}
"""Themes by name."""


def automatic_theme(environ: Mapping[str, str]) -> str:
    """The theme where none is chosen: by the number of colours, and by COLORFGBG where a terminal sets it."""
    term = environ.get("TERM", "")
    has_256 = "256" in term or "kitty" in term or "direct" in term or bool(environ.get("COLORTERM"))
    if not has_256:
        return "16-colour"
    return "light" if environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else "dark"
