"""The pictures of the terminal in the documentation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from xml.etree import ElementTree

from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from tests.overwatch_tui.record import NAME, unpack
from tools import terminal_pictures

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "terminal.md"


def texts(svg: str) -> str:
    """The words of a picture."""
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


def test_a_picture_is_drawn_of_the_recorded_run(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    unpack(tmp_path / NAME / EVENTS_FILE)
    words = texts(asyncio.run(terminal_pictures.draw(tmp_path, terminal_pictures.PICTURES["env"])))
    assert "round 6/6" in words
    assert "epoch 14/20" in words


def test_pictures_are_shown_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in terminal_pictures.PICTURES:
        path = terminal_pictures.FOLDER / f"terminal-{name}.svg"
        assert f"(../img/{path.name})" in page
        assert NAME in texts(path.read_text(encoding="utf-8"))
