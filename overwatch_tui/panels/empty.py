"""Before there is anything to show: what it waits for and what to type."""

from __future__ import annotations

from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """A few lines in the middle."""
    link = frame.link
    texts = [("E S P E R   O V E R W A T C H", "title"), ("", "")]
    texts.append((link.said or f"{link.word.lower()} ...", "bold"))
    if link.state == "searching":
        texts += [
            ("", ""),
            ("it goes on looking; all runs: esper-daemon list --all", "dim"),
            ("a past run: esper-tui --replay NAME", "dim"),
        ]
    texts += [("", ""), ("? help   q quit", "dim")]
    lines: list[Line] = [EMPTY] * max(0, (height - len(texts)) // 2)
    for text, style in texts:
        lines.append(Row().to(max(0, (width - len(text)) // 2)).put(text, style).line(width))
    return lines


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 1, 20


PANEL = Panel(name="empty", title=lambda _frame: "", body=body, needs=needs)
