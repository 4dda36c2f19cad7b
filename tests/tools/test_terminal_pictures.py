"""The pictures and the recording of the terminal in the documentation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from tests.overwatch_tui.record import NAME, unpack
from tools import terminal_cast, terminal_pictures

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "terminal.md"


def texts(svg: str) -> str:
    """The words of a picture."""
    return " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


def test_a_picture_is_drawn_of_the_recorded_run(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    unpack(tmp_path / NAME / EVENTS_FILE)
    words = texts(asyncio.run(terminal_pictures.draw(tmp_path, terminal_pictures.PICTURES["policy"])))
    assert "[4 Policy]" in words
    assert "round 6/6" in words
    assert "epoch 14/20" in words


def test_eight_views_are_shown_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(terminal_pictures.PICTURES) == 8
    for name in terminal_pictures.PICTURES:
        path = terminal_pictures.FOLDER / f"terminal-{name}.svg"
        assert f"(../img/{path.name})" in page
        assert NAME in texts(path.read_text(encoding="utf-8"))


def test_the_recording_is_an_asciicast_of_half_a_minute() -> None:
    header, *rows = map(json.loads, terminal_cast.PAGE.read_text(encoding="utf-8").splitlines())
    assert header["version"] == 2
    times = [at for at, _, _ in rows]
    assert times == sorted(times)
    assert 29.0 < times[-1] < 60.0
    assert any("[5 Seeds]" in text for _, _, text in rows)
    assert f"(../img/{terminal_cast.PAGE.name})" in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_recording_is_made_on_a_pseudo_terminal(tmp_path: Path) -> None:
    header, *rows = map(json.loads, terminal_cast.record(tmp_path, 6.0).splitlines())
    assert (header["width"], header["height"]) == (terminal_cast.COLUMNS, terminal_cast.LINES)
    assert any("REPLAY" in text for _, _, text in rows)
