"""Makes an exported screenshot self-contained: no font from the network, a background that shows bars."""

from __future__ import annotations

import re

FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
GREY, NIGHT = "#292929", "#0e1218"

_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FAMILY = re.compile(r"font-family:\s*Fira Code[^;]*;")


def self_contained(svg: str) -> str:
    """The same image, with fonts that the reader has."""
    return _FAMILY.sub(f"font-family: {FONTS};", _FONT_FACE.sub("", svg)).replace(GREY, NIGHT)
