"""How things look: two sets of glyphs and a palette. A state is a letter and a word before it is a colour."""

from __future__ import annotations

import locale
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style


@dataclass(frozen=True)
class Glyphs:
    """The characters that differ between a unicode and an ASCII terminal."""

    name: str
    up: str
    down: str
    flat: str
    cursor: str
    rule: str
    bar: str
    """Between columns."""
    tee: str
    """Where a rule meets the bar between columns."""
    full: str
    """Filled part of a gauge."""
    empty: str
    spark: str
    """Levels of a sparkline, lowest first."""
    braille: bool
    arrow: str
    ellipsis: str
    dot: str
    separator: str
    times: str
    plus_minus: str
    descending: str
    ascending: str
    corners: str
    """Of a box: top left, top right, bottom left, bottom right."""


UNICODE = Glyphs(
    name="unicode", up="↑", down="↓", flat="→", cursor="▶", rule="─", bar="│", tee="├", full="━",
    empty="╌", spark="▁▂▃▄▅▆▇█", braille=True, arrow="→", ellipsis="…", dot="·", separator="│",
    times="×", plus_minus="±", descending="▾", ascending="▴", corners="╭╮╰╯",
)  # fmt: skip
ASCII = Glyphs(
    name="ascii", up="^", down="v", flat="=", cursor=">", rule="-", bar="|", tee="+", full="#",
    empty=".", spark="_.-=+*#", braille=False, arrow="->", ellipsis="~", dot=".", separator="|",
    times="x", plus_minus="+-", descending="v", ascending="^", corners="....",
)  # fmt: skip

_COLOURS = {
    "background": "#0e1218",
    "": "#c5cdd9",
    "bold": "bold #e6ebf2",
    "dim": "#75828f",
    "faint": "#4b5768",
    "title": "bold #7fb4ff",
    "rule": "#303b4a",
    "focus": "#7fb4ff",
    "key": "#e2c08d",
    "accent": "#56c8d8",
    "ok": "#7cc47f",
    "warning": "bold #f0b655",
    "critical": "bold #ff6b6b",
    "info": "#8fb7e8",
    "chart": "#5aa9e6",
    "chart2": "#b48ead",
    "chart3": "#7cc47f",
    "select": "on #1c2836",
    "bar": "on #151c26",
    "alarm": "bold #ffffff on #a02a35",
    "caution": "bold #1a1205 on #f0b655",
    "tab": "bold #0e1218 on #7fb4ff",
    "live": "bold #0e1218 on #7cc47f",
    "box": "#7fb4ff",
    "dormant": "#4b5768",
    "germinated": "#c3d06b",
    "training": "#5aa9e6",
    "blending": "#c792ea",
    "holding": "#56c8d8",
    "fossilized": "#7cc47f",
    "pruned": "#e58a6f",
    "embargoed": "#8a6d5f",
    "resetting": "#8a6d5f",
}
_MONOCHROME = {
    "bold": "bold", "title": "bold", "key": "bold", "warning": "bold", "critical": "bold reverse",
    "alarm": "bold reverse", "caution": "reverse", "tab": "reverse", "live": "bold", "focus": "bold",
}  # fmt: skip

BACKGROUND = _COLOURS["background"]


@dataclass(frozen=True)
class Theme:
    """Styles by name; names in one string are laid over each other (`"critical select"`)."""

    styles: Mapping[str, str]
    background: str | None

    @classmethod
    def colour(cls) -> Theme:
        return cls(styles=_COLOURS, background=BACKGROUND)

    @classmethod
    def monochrome(cls) -> Theme:
        """No colour at all (NO_COLOR): bold and reverse only."""
        return cls(styles=_MONOCHROME, background=None)

    def style(self, names: str) -> Style:
        return _resolve(names, self.background is not None)


@lru_cache(maxsize=1024)
def _resolve(names: str, colour: bool) -> Style:
    styles = _COLOURS if colour else _MONOCHROME
    style = Style.parse(f"{_COLOURS['']} on {BACKGROUND}") if colour else Style.null()
    for name in names.split():
        style += Style.parse(styles.get(name, ""))
    return style


def letter(severity: str | None) -> str:
    """One character per severity, readable without colour."""
    return {"critical": "!", "warning": "?"}.get(severity or "", " ")


def word(severity: str | None) -> str:
    """The word that stands beside the colour."""
    return {"critical": "CRIT", "warning": "WARN", "info": "info"}.get(severity or "", "ok")


def prefers_ascii(environ: Mapping[str, str]) -> bool:
    """True on the Linux console and where the locale cannot encode unicode."""
    if environ.get("TERM", "") in ("linux", "dumb", "vt100", "vt220"):
        return True
    return "utf" not in locale.getpreferredencoding(False).lower()
