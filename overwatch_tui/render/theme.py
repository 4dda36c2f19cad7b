"""Two sets of glyphs and a palette. Each state has a letter and a word beside its colour."""

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
    full: str
    """Filled part of a gauge."""
    empty: str
    spark: str
    """Levels of a sparkline, lowest first."""
    braille: bool
    arrow: str
    separator: str
    times: str
    plus_minus: str
    descending: str
    ascending: str
    corners: str
    """Of a box: top left, top right, bottom left, bottom right."""


UNICODE = Glyphs(
    name="unicode",
    up="↑",
    down="↓",
    flat="→",
    cursor="▶",
    rule="─",
    bar="│",
    full="━",
    empty="╌",
    spark="▁▂▃▄▅▆▇█",
    braille=True,
    arrow="→",
    separator="│",
    times="×",
    plus_minus="±",
    descending="▾",
    ascending="▴",
    corners="╭╮╰╯",
)
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
    separator="|",
    times="x",
    plus_minus="+-",
    descending="v",
    ascending="^",
    corners="....",
)

_COLOURS = {
    "bold": "bold",
    "dim": "color(244)",
    "faint": "color(240)",
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
    "select": "on color(236)",
    "bar": "on color(235)",
    "alarm": "bold color(231) on color(124)",
    "caution": "bold color(16) on color(214)",
    "tab": "bold color(16) on color(75)",
    "live": "bold color(16) on color(71)",
    "box": "color(75)",
    "dormant": "color(240)",
    "germinated": "color(143)",
    "training": "color(74)",
    "blending": "color(140)",
    "holding": "color(79)",
    "fossilized": "color(71)",
    "pruned": "color(173)",
    "embargoed": "color(95)",
    "resetting": "color(95)",
}
_MONOCHROME = {
    "bold": "bold",
    "title": "bold",
    "key": "bold",
    "warning": "bold",
    "critical": "bold reverse",
    "alarm": "bold reverse",
    "caution": "reverse",
    "tab": "reverse",
    "live": "bold",
    "focus": "bold",
}
_ON_BAR = "color(252)"
"""Plain text where we set the background: the terminal's own colour may not be legible there."""


class Theme:
    """Styles by name; names in one string are laid over each other (`"critical select"`).

    Plain text has the terminal's own colours, and all others are from the 256 that nearly every terminal
    has: an escape sequence of ten bytes instead of forty for every piece of text, legible on dark and light.

    Args:
        colour: False for bold and reverse only (NO_COLOR).
    """

    def __init__(self, *, colour: bool = True) -> None:
        self.colour = colour

    def style(self, names: str) -> Style:
        return _resolve(names, self.colour)


@lru_cache(maxsize=1024)
def _resolve(names: str, colour: bool) -> Style:
    styles = _COLOURS if colour else _MONOCHROME
    style = Style.null()
    for name in names.split():
        style += Style.parse(styles.get(name, ""))
    if style.bgcolor is not None and style.color is None:
        style += Style.parse(_ON_BAR)
    return style


def severity_mark(severity: str | None) -> str:
    """One character per severity, readable without colour."""
    return {"critical": "!", "warning": "?"}.get(severity or "", " ")


def severity_label(severity: str | None) -> str:
    """A severity in at most four letters."""
    return {"critical": "CRIT", "warning": "WARN", "info": "info"}.get(severity or "", "ok")


def prefers_ascii(environ: Mapping[str, str]) -> bool:
    """True on the Linux console and where the locale cannot encode unicode."""
    if environ.get("TERM", "") in ("linux", "dumb", "vt100", "vt220"):
        return True
    return "utf" not in locale.getpreferredencoding(False).lower()
