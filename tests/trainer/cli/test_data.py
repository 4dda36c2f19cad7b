"""`esper-daemon data`: lists, checks and registers; faults end with exit code 9, at a start as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper_overwatch.trainer.data.generated import GENERATED_TASKS
from tests.trainer.command import esper
from tests.trainer.data import folders


def test_register_then_list_then_check(tmp_path: Path) -> None:
    folder = folders.idx_folder(tmp_path / "files")
    expected = {
        "name": "mine",
        "format": "idx",
        "folder": str(folder),
        "classes": 3,
        "shape": [1, 6, 5],
        "train": 54,
        "val": 6,
        "test": 20,
    }
    registered = esper("data", "mine", "--from", folder, "--json")
    assert registered.exit_code == 0, registered.output
    assert json.loads(registered.stdout) == expected
    assert json.loads(esper("data", "mine", "--json").stdout) == expected
    rows = {row["name"]: row for row in json.loads(esper("data", "--json").stdout)}
    assert {
        "digits",
        *GENERATED_TASKS,
        "synthetic",
        "text",
        "mnist",
        "fashion-mnist",
        "fashion-8x8",
        "cifar10",
        "cifar100",
        "mine",
    } == rows.keys()
    assert rows["mine"]["ready"]
    assert rows["mine"]["holds"]["train"] == 54
    assert not rows["cifar10"]["ready"]
    text = esper("data").stdout
    assert "54 + 6 + 20 images (train, validation, test) of 1x6x5 in 3 classes" in text
    assert "esper-daemon data cifar10 --from FOLDER" in text
    assert "classes          3" in esper("data", "mine").stdout


def test_a_damaged_file_is_not_registered(tmp_path: Path, home: Path) -> None:
    path = folders.idx_folder(tmp_path / "files") / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    result = esper("data", "mine", "--from", tmp_path / "files")
    assert result.exit_code == 9
    assert f"esper-daemon: {path}: the gzip file is cut short; get the file again" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (home / "datasets").exists()


def test_from_needs_a_name(tmp_path: Path) -> None:
    assert esper("data", "--from", tmp_path).exit_code == 2


@pytest.mark.parametrize("dataset", ["didgits", "mnist", "a/b"])
def test_a_start_without_its_dataset_leaves_no_run_behind(home: Path, dataset: str) -> None:
    result = esper("start", "--set", f"task.dataset={dataset}", "--device", "cpu")
    assert result.exit_code == 9
    assert dataset in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (home / "runs").exists()
