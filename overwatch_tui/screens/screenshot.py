"""Makes an exported screenshot self-contained: no font from the network, a background that shows bars."""

from __future__ import annotations

import re

FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
GREY, NIGHT, WHITE = "#292929", "#0e1218", "#ffffff"
"""Rich's background, and those of dark and light themes."""
PALE, INK = "#c5c8c6", "#1a1a1a"
"""Rich's plain text, and that of light themes."""

_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FAMILY = re.compile(r"font-family:\s*Fira Code[^;]*;")


def self_contained(svg: str, *, is_light: bool = False) -> str:
    """Use fonts that the reader has, and the background that the theme is made for."""
    svg = _FAMILY.sub(f"font-family: {FONTS};", _FONT_FACE.sub("", svg))
    if is_light:
        return svg.replace(GREY, WHITE).replace(PALE, INK)
    return svg.replace(GREY, NIGHT)
