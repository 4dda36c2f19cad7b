"""Shown before the first data: what the terminal waits for, and what to type."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.link_text import link_text
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    link = inputs.link
    texts = [("E S P E R   O V E R W A T C H", "title"), ("", "")]
    texts.append((link_text(link) or f"{link.label.lower()} ...", "bold"))
    if link.state == "searching":
        texts += [("", ""), ("still looking; R lists all runs, also those that have ended", "dim")]
    texts += [("", ""), ("? help   R runs   q quit", "dim")]
    lines: list[Line] = [EMPTY] * max(0, (height - len(texts)) // 2)
    for text, style in texts:
        lines.append(Row().to(max(0, (width - len(text)) // 2)).put(text, style).line(width))
    return Drawn(lines)


RENDERER = Renderer(title=lambda _inputs: "", body=body, needs=lambda *_: (1, 20))
