"""From files to a run on them, as a user does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.data.folders import idx_folder

from .conftest import SMALL, House


@pytest.mark.slow
def test_registered_folder_is_trained_on_and_found_after_move(house: House, tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "files", train=200)
    assert house.ask("data", "mine", "--from", str(folder))["train"] == 179
    options = (*SMALL, "task.dataset=mine", "task.augment=crop,flip", "task.shared_batches=true")
    sets = [word for option in options for word in ("--set", option)]
    begun = house.daemon("start", "on-mine", "--rounds", "1", *sets)
    assert begun.returncode == 0, begun.stderr
    folder.rename(tmp_path / "moved")
    lost = house.daemon("start", "--resume", "on-mine", "--rounds", "2")
    assert lost.returncode == 9
    assert f"{folder}: no such folder" in lost.stderr
    there = f"task.data_dir={tmp_path / 'moved'}"
    resumed = house.daemon("start", "--resume", "on-mine", "--rounds", "2", "--set", there)
    assert resumed.returncode == 0, resumed.stderr
    assert [e["data"]["task"] for e in house.journal("on-mine", "run.started")] == ["mine", "mine"]
    assert len(house.journal("on-mine", "round.finished")) == 2
