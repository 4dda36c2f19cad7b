"""Two sets of glyphs, and styles by name. Each state has a letter and a word beside its colour.

A style `pixels:A:B` has two of the 256 colours, in all themes that have colours.
"""

from __future__ import annotations

import locale
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.style import Style

from .lines import CUT
from .palettes import MONOCHROME, PALETTES


@dataclass(frozen=True)
class Glyphs:
    """The characters that differ between a unicode and an ASCII terminal."""

    name: str = "unicode"
    up: str = "↑"
    down: str = "↓"
    flat: str = "→"
    cursor: str = "▶"
    rule: str = "─"
    bar: str = "│"
    """Between columns, and between pieces of text."""
    full: str = "━"
    """Filled part of a gauge."""
    empty: str = "╌"
    spark: str = "▁▂▃▄▅▆▇█"
    """Levels of a sparkline, lowest first."""
    braille: bool = True
    arrow: str = "→"
    times: str = "×"
    plus_minus: str = "±"
    descending: str = "▾"
    ascending: str = "▴"
    corners: str = "╭╮╰╯"
    """Corners of a box: top left, top right, bottom left, bottom right."""
    cut: str = CUT
    """Sign at the end of a cut text."""


UNICODE = Glyphs()
ASCII = Glyphs(
    name="ascii",
    up="^",
    down="v",
    flat="=",
    cursor=">",
    rule="-",
    bar="|",
    full="#",
    empty=".",
    spark="_.-=+*#",
    braille=False,
    arrow="->",
    times="x",
    plus_minus="+-",
    descending="v",
    ascending="^",
    corners="....",
    cut="~",
)


class Theme:
    """Styles by name; names in one string are laid over each other (`"critical select"`).

    Without `colour` there are bold and reverse only (NO_COLOR); `name` is one of `PALETTES`.
    """

    def __init__(self, *, colour: bool = True, name: str = "dark") -> None:
        self.colour = colour
        self.name = name
        """After a change everything has to be drawn again."""

    def style(self, names: str) -> Style:
        return _resolve(names, self.name if self.colour else "")

    @property
    def is_light(self) -> bool:
        """True if it is made for a light background."""
        return self.colour and PALETTES[self.name].backgrounds[0] == "#ffffff"


@lru_cache(maxsize=4096)
def _resolve(names: str, theme: str) -> Style:
    """The style in a theme; in none of them where its name is empty."""
    styles = PALETTES[theme].styles if theme else MONOCHROME.styles
    style = Style.null()
    for name in names.split():
        if theme and name.startswith("pixels:"):
            colour, background = (Color.from_ansi(int(number)) for number in name.split(":")[1:])
            style += Style(color=colour, bgcolor=background)
        style += Style.parse(styles.get(name, ""))
    if style.bgcolor is not None and style.color is None:
        style += Style.parse(PALETTES[theme].on_bar)
    return style


def severity_mark(severity: str | None) -> str:
    """One character per severity, readable without colour."""
    return {"critical": "!", "warning": "?"}.get(severity or "", " ")


def severity_label(severity: str | None) -> str:
    """A severity in at most four letters."""
    return {"critical": "CRIT", "warning": "WARN", "info": "info"}.get(severity or "", "ok")


def chosen_glyphs(name: str, environ: Mapping[str, str]) -> Glyphs:
    """The glyphs of a setting: unicode, ascii, or auto."""
    return ASCII if name == "ascii" or (name == "auto" and prefers_ascii(environ)) else UNICODE


def prefers_ascii(environ: Mapping[str, str]) -> bool:
    """True on the Linux console and where the locale cannot encode unicode."""
    if environ.get("TERM", "") in ("linux", "dumb", "vt100", "vt220"):
        return True
    return "utf" not in locale.getpreferredencoding(False).lower()
