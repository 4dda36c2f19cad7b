"""Pictures as text. After a change that is meant: `python -m tests.overwatch_tui.scenes`; read the diff."""

from __future__ import annotations

import pytest

from .scenes import SCENES, SIZES, path_of


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SCENES)
def test_picture(name: str, size: tuple[int, int]) -> None:
    width, height = size
    path = path_of(name, width, height)
    assert SCENES[name](width, height) + "\n" == path.read_text(encoding="utf-8"), f"see {path.name}"


@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_wider_or_taller_than_the_screen(name: str) -> None:
    for width, height in ((80, 24), (100, 31), (120, 40), (180, 50), (200, 60)):
        lines = SCENES[name](width, height).split("\n")
        assert len(lines) == height
        assert all(len(line) <= width for line in lines)


def test_ascii_is_ascii() -> None:
    for size in SIZES:
        assert SCENES["ascii"](*size).isascii()


def test_no_golden_file_is_left_over() -> None:
    known = {path_of(name, *size) for name in SCENES for size in SIZES}
    assert set(path_of("empty", 80, 24).parent.glob("*.txt")) == known
