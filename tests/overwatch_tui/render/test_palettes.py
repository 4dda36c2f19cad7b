"""Themes: contrast as WCAG 2.1 computes it, colours as colour-blind eyes see them, states without colour."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest
from rich.color import Color

from esper_overwatch.overwatch_tui.render.layout import ScreenLayout
from esper_overwatch.overwatch_tui.render.lines import Line, plain
from esper_overwatch.overwatch_tui.render.palettes import PALETTES, chosen_theme
from esper_overwatch.overwatch_tui.render.theme import Theme
from tests.overwatch_tui.scenes import SCENES, SIZES
from tests.overwatch_tui.snapshots import SNAPSHOTS, layouts

NOT_TEXT = frozenset({"rule"})
"""Styles of lines between panels: they may be less visible than text."""

Rgb = tuple[int, int, int]
FIRST_SIXTEEN = {
    "linux": "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa "
    "555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff",
    "xterm": "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 "
    "7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff",
}
"""The colours that terminals choose themselves."""
LEAST = {"high-contrast": 7.0}
BARS = ("", "select", "bar")
"""What a style is laid on."""


def _rgb(text: str) -> Rgb:
    text = text.lstrip("#")
    return int(text[:2], 16), int(text[2:4], 16), int(text[4:], 16)


def _shown(colour: Color, terminal: str) -> Rgb:
    if colour.number is not None and colour.number < 16:
        return _rgb(FIRST_SIXTEEN[terminal].split()[colour.number])
    return _rgb(colour.get_truecolor().hex)


def _linear(colour: Rgb) -> list[float]:
    return [v / 255 / 12.92 if v / 255 <= 0.03928 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]


def contrast(one: Rgb, other: Rgb) -> float:
    """Of two colours, from 1 to 21; WCAG 2.1, "contrast ratio"."""
    luminances = [
        sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), _linear(c), strict=True)) for c in (one, other)
    ]
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(_rgb("#777777"), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("terminal", FIRST_SIXTEEN)
@pytest.mark.parametrize("name", PALETTES)
def test_text_of_every_theme_is_legible(name: str, terminal: str) -> None:
    palette, theme, least = PALETTES[name], Theme(name=name), LEAST.get(name, 4.5)
    found = {}
    for style in palette.styles:
        has_background = theme.style(style).bgcolor is not None
        for bar in BARS if not has_background and style not in NOT_TEXT else ("",):
            both = theme.style(f"{style} {bar}")
            if both.color is None or style in NOT_TEXT:
                continue
            behind = [_rgb(text) for text in palette.backgrounds]
            if both.bgcolor is not None:
                behind = [_shown(both.bgcolor, terminal)]
            found[style, bar] = min(contrast(_shown(both.color, terminal), colour) for colour in behind)
    assert len(found) > 50
    assert {key: round(value, 2) for key, value in found.items() if value < least} == {}


def test_every_theme_has_every_style() -> None:
    names = {frozenset(palette.styles) for palette in PALETTES.values()}
    assert len(names) == 1


SEEN_BY = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
"""Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB."""


def _lab(linear: list[float]) -> list[float]:
    """CIE 1976 L*a*b* of linear sRGB, white point D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [
        sum(a * b for a, b in zip(row, linear, strict=True)) / white
        for row, white in zip(rows, (0.9505, 1.0, 1.089), strict=True)
    ]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def _seen(style: str, theme: str, eye: str) -> list[float]:
    colour = Theme(name=theme).style(style).color
    assert colour is not None
    linear = _linear(_shown(colour, "xterm"))
    return _lab([max(0.0, sum(a * b for a, b in zip(row, linear, strict=True))) for row in SEEN_BY[eye]])


@pytest.mark.parametrize("eye", SEEN_BY)
def test_colour_blind_eyes_tell_severities_apart(eye: str) -> None:
    def nearest(theme: str) -> float:
        seen = [_seen(style, theme, eye) for style in ("ok", "warning", "critical")]
        return min(math.dist(seen[i], seen[j]) for i, j in ((0, 1), (0, 2), (1, 2)))

    assert nearest("colour-blind") > 30
    assert nearest("colour-blind") > nearest("dark")


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TERM": "xterm-256color"}, "dark"),
        ({"TERM": "linux"}, "16-colour"),
        ({"TERM": "screen"}, "16-colour"),
        ({}, "16-colour"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "dark"),
        ({"TERM": "tmux-256color", "COLORFGBG": "0;15"}, "light"),
        ({"TERM": "tmux-256color", "COLORFGBG": "15;default;0"}, "dark"),
    ],
)
def test_theme_follows_what_the_terminal_says(environ: dict[str, str], name: str) -> None:
    assert chosen_theme("auto", environ) == name


SAID = re.compile(
    r"[!?]|^ [CWSR]+[▁-█]"  # cells of envs
    r"|critical|warning|CRIT|WARN|rollback|stalled|LOST|STALE|SEARCHING|STARTING|PAUSED|ENDED|DIED|FAILED|FROZEN"
    r"|DEBUG|flagged|not finite|gap \d|bad \d|lost \d|Problems\(\d|not answering|gaps|refused"
)
"""Words and marks of all that is shown in the colour of a warning or an alarm."""
SCENE_SAYS = {
    "stale": "STALE",
    "frozen": "FROZEN",
    "ended": "ENDED",
    "paused": "PAUSED",
    "read-only": "read-only",
    "gaps": "gap 2",
    "empty": "no live run",
    "joined-without-events": "STARTING",
}


ALARMING = {"warning", "critical", "alarm", "caution"}
SNAPSHOT_SAYS = {
    "live": "LIVE",
    "empty": "no live run",
    "stale": "STALE",
    "lost": "LOST",
    "ended": "STOPPED",
    "frozen": "FROZEN",
    "recording": "REPLAY",
    "read-only": "read-only",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_states_are_readable_with_colour_stripped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid: set[str] = set()
    draw = ScreenLayout.text

    def stripped(self: ScreenLayout, width: int, height: int) -> str:
        for line in (line for lines in self.lines.values() for line in lines):
            if _styles(line) & ALARMING and not SAID.search(plain(line)):
                unsaid.add(plain(line))
        return draw(self, width, height)

    monkeypatch.setattr(ScreenLayout, "text", stripped)
    for width, height in SIZES:
        text = SCENES[name](width, height)
        if width >= 120:
            assert SCENE_SAYS.get(name, "") in text
    assert unsaid == set()


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_view_says_its_state_without_colour(name: str) -> None:
    for view, layout in layouts(name, *SIZES[1]):
        lines = [line for found in layout.lines.values() for line in found]
        told = [line for line in lines if _styles(line) & ALARMING]
        assert [plain(line) for line in told if not SAID.search(plain(line))] == [], view
        assert SNAPSHOT_SAYS.get(name, "") in layout.text(*SIZES[1]), view


@pytest.mark.parametrize("theme", PALETTES)
def test_styles_laid_over_each_other_are_legible(theme: str) -> None:
    palette, made, least = PALETTES[theme], Theme(name=theme), LEAST.get(theme, 4.5)
    used = {names for name in ("stale", "16-envs", "foreign") for names in _combinations(name)}
    assert any(" " in names for names in used)
    found = {}
    for names in used:
        style = made.style(names)
        if style.color is None or set(names.split()) & NOT_TEXT:
            continue
        behind = [_rgb(text) for text in palette.backgrounds]
        if style.bgcolor is not None:
            behind = [_shown(style.bgcolor, "xterm")]
        found[names] = min(contrast(_shown(style.color, "xterm"), colour) for colour in behind)
    assert {names: round(value, 2) for names, value in found.items() if value < least} == {}


@cache
def _combinations(name: str) -> frozenset[str]:
    """The styles of all pieces of text in a state."""
    return frozenset(
        names
        for _, layout in layouts(name, *SIZES[1])
        for lines in layout.lines.values()
        for line in lines
        for text, names in line
        if text.strip()
    )


def _styles(line: Line) -> set[str]:
    return {style for _, names in line for style in names.split()}
