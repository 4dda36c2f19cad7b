"""Themes: colours by the name of a style, from the 256 that nearly every terminal has, or from its first 16.

Plain text and the background are the terminal's own, so that a piece of text takes an escape sequence of ten
bytes instead of forty. Each theme names the backgrounds that it is made for: on them all text has a contrast
of at least 4.5 to 1 (WCAG 2.1), which a test computes.
"""

from __future__ import annotations

import re
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


_TABLE = """
style       dark             light            high-contrast    colour-blind    16-colour      monochrome
bold        bold             bold             bold             bold            bold           bold
dim         247              240              253              247             7              --
faint       246              241              252              246             7              --
title       bold 75          bold 25          bold 159         bold 75         bold 14        bold
rule        239              249              250              239             8              --
focus       75               25               bold 159         75              14             bold
key         179              88               bold 229         179             11             bold
accent      73               23               159              75              14             --
ok          71               22               157              75              10             --
warning     bold 214         bold 94          bold 227         bold 227        bold 11        bold
critical    bold 203         bold 124         bold 231 on 124  bold 203        bold 9         bold reverse
info        110              24               195              252             14             --
chart       74               25               159              75              14             --
chart2      139              90               225              178             13             --
chart3      108              22               157              175             10             --
select      on 235           on 254           bold 16 on 255   on 235          0 on 7         --
bar         on 235           on 254           231 on 16        on 235          7 on 0         --
alarm       bold 231 on 124  bold 231 on 124  bold 231 on 124  bold 16 on 203  bold 15 on 1   bold reverse
caution     bold 16 on 214   bold 16 on 214   bold 16 on 227   bold 16 on 227  bold 11        reverse
tab         bold 16 on 75    bold 231 on 25   bold 16 on 231   bold 16 on 75   0 on 6         reverse
live        bold 16 on 71    bold 231 on 22   bold 16 on 157   bold 16 on 252  0 on 2         bold
box         75               25               231              75              14             --
dormant     246              241              252              246             7              --
germinated  143              58               229              227             11             --
training    74               25               159              75              14             --
blending    140              55               225              178             13             --
holding     79               23               158              36              14             --
fossilized  71               22               157              252             10             --
pruned      173              88               223              208             9              --
embargoed   138              89               224              175             13             --
resetting   138              89               224              175             13             --
"""
"""Numbers of colours, behind `on` of backgrounds; those of `colour-blind` are near the eight of Okabe and Ito
(2008), lighter where the contrast asks for it.
"""
_BLACK, _WHITE = ("#000000", "#1e1e1e"), ("#ffffff", "#eeeeee")
_HEADINGS, *_ROWS = [re.split(r"  +", line) for line in _TABLE.strip().splitlines()]


def _palette(name: str, backgrounds: tuple[str, ...], on_bar: str) -> Palette:
    at = _HEADINGS.index(name)
    styles = {row[0]: re.sub(r"\d+", r"color(\g<0>)", row[at]) for row in _ROWS if row[at] != "--"}
    return Palette(backgrounds, on_bar, styles)


PALETTES: dict[str, Palette] = {
    "dark": _palette("dark", _BLACK, "color(252)"),
    "light": _palette("light", _WHITE, "color(16)"),
    "high-contrast": _palette("high-contrast", _BLACK, "color(231)"),
    "colour-blind": _palette("colour-blind", _BLACK, "color(252)"),
    "16-colour": _palette("16-colour", ("#000000",), "color(7)"),
}
"""Themes by name."""
MONOCHROME = _palette("monochrome", (), "")
"""Bold and reverse only, on whatever background."""


def chosen_theme(name: str, environ: Mapping[str, str]) -> str:
    """The theme of a setting; `auto` by the number of colours, and by COLORFGBG where a terminal sets it."""
    if name != "auto":
        return name
    term = environ.get("TERM", "")
    has_256 = "256" in term or "kitty" in term or "direct" in term or bool(environ.get("COLORTERM"))
    if not has_256:
        return "16-colour"
    return "light" if environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else "dark"
