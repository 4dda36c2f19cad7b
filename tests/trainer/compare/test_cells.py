"""The store of cells: what is kept, what is another cell, what damage costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.trainer.compare.cells import Cell, CellStore

CELL = Cell("play-ppo-1", {"seed": 1, "tasks": ("a", "b")})


def test_results_survive_and_belong_to_their_key(tmp_path: Path) -> None:
    CellStore(tmp_path / "new").save(CELL, {"value": 1.5})
    store = CellStore(tmp_path / "new")
    assert store.load(CELL) == {"value": 1.5}
    assert store.load(Cell(CELL.name, {"seed": 2, "tasks": ("a", "b")})) is None
    assert store.load(Cell(CELL.name, {"tasks": ["a", "b"], "seed": 1})) == {"value": 1.5}


def test_part_is_kept_until_the_cell_is_done(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    assert store.load_part(CELL) is None
    store.save_part(CELL, b"half")
    assert store.load_part(CELL) == b"half"
    store.save(CELL, {})
    assert store.load_part(CELL) is None
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_cell_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    store, other = CellStore(tmp_path), CellStore(tmp_path)
    with store.claim(CELL) as mine:
        assert mine
        with other.claim(CELL) as theirs:
            assert not theirs
        with other.claim(Cell("play-ppo-2", {})) as theirs:
            assert theirs
    with other.claim(CELL) as theirs:
        assert theirs, "what was given up is free"
        other.save(CELL, {})
    assert not list(tmp_path.glob("play-ppo-1*.lock")), "a cell that is done needs no lock"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"key": {}, "result": {}}', b"\xff"])
def test_damaged_cell_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    store = CellStore(tmp_path)
    store.save(CELL, {"value": 1})
    next(tmp_path.iterdir()).write_bytes(content)
    assert store.load(CELL) is None


def test_missing_file_of_a_cell_says_what_to_do(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.save_file(CELL, b"weights")
    assert store.load_file(CELL) == b"weights"
    with pytest.raises(FolderError, match=r"delete other-\w+\.json beside it"):
        store.load_file(Cell("other", {}))


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot make the folder"):
        CellStore(tmp_path / "file" / "below")
