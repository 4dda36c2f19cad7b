"""Files that are not the published ones, by one byte, are refused under the published name."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper_overwatch.trainer.data import checksums
from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.registry import KNOWN_DATASETS, load, register
from tests.trainer.command import esper
from tests.trainer.data import folders

torch.set_num_threads(1)
INSTALLED = KNOWN_DATASETS["fashion-mnist"].folder
assert INSTALLED is not None
IMAGES = "train-images-idx3-ubyte"


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, classes: int, count: int) -> None:
    """Let a folder of few images be the published dataset of that name."""
    files = {file.name: md5(file) for file in folder.iterdir()}
    assert files.keys() == KNOWN_DATASETS[name].md5.keys()
    small = replace(KNOWN_DATASETS[name], classes=classes, train=count, test=count // 5, md5=files)
    monkeypatch.setitem(KNOWN_DATASETS, name, small)


def assert_refused(name: str, path: Path, was: str) -> None:
    for attempt in (lambda: load(name, folder=str(path.parent)), lambda: register(name, path.parent)):
        with pytest.raises(DataError) as caught:
            attempt()
        message = str(caught.value)
        assert message.startswith(
            f"{path}: its content has the MD5 {md5(path)}, and {path.name} of {name} as"
        )
        assert f"published {was}; get the file again" in message
        assert "\n" not in message


def test_each_file_of_each_well_known_dataset_has_one() -> None:
    known = {name: dataset.md5 for name, dataset in KNOWN_DATASETS.items()}
    assert {name: len(md5) for name, md5 in known.items()} == {
        "mnist": 4,
        "fashion-mnist": 4,
        "cifar10": 6,
        "cifar100": 2,
    }
    values = [value for md5 in known.values() for value in md5.values()]
    assert all(re.fullmatch(r"[0-9a-f]{32}", value) for value in values)
    assert len(set(values)) == 16


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist"])
def test_a_flipped_byte_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "files"
    if name == "cifar10":
        folders.cifar10_folder(folder, "python")
        publish(monkeypatch, name, folder, 10, 100)
    elif name == "cifar100":
        folders.cifar100_folder(folder, "python", train=1000, test=200)
        publish(monkeypatch, name, folder, 100, 1000)
    else:
        folders.idx_folder(folder, train=100, zipped=False)
        publish(monkeypatch, name, folder, 3, 100)
    assert len(load(name, folder=str(folder)).test)
    path = folder / {"cifar10": "data_batch_4", "cifar100": "test"}.get(name, IMAGES)
    was = md5(path)
    flip(path, len(path.read_bytes()) // 2)
    assert_refused(name, path, was)
    assert register("my-variant", folder).holds.test, "another name has no published files"
    assert len(load("my-variant").test)


def test_zipped_files_are_compared_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders.idx_folder(tmp_path / "plain", train=100, zipped=False)
    publish(monkeypatch, "mnist", folder, 3, 100)
    zipped = folders.idx_folder(tmp_path / "zipped", train=100)
    assert len(load("mnist", folder=str(zipped)).test) == 20
    path = zipped / f"{IMAGES}.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-1] ^= 1
    path.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(DataError, match=rf"{path}: its content has the MD5 .*{md5(folder / IMAGES)}"):
        load("mnist", folder=str(zipped))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_binary_batches_have_none_that_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What is compared is the count, and the labels' range; the docs say so."""
    folder = tmp_path / "files"
    if name == "cifar10":
        folders.cifar10_folder(folder, "binary")
    else:
        folders.cifar100_folder(folder, "binary", train=1000, test=100)
    train, test = (100, 20) if name == "cifar10" else (1000, 100)
    monkeypatch.setitem(KNOWN_DATASETS, name, replace(KNOWN_DATASETS[name], train=train, test=test))
    assert len(load(name, folder=str(folder)).test) == test


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED.is_dir(), reason="the package dataset-fashion-mnist is not installed")
def test_a_flipped_pixel_of_the_real_fashion_mnist_is_refused(tmp_path: Path) -> None:
    for file in INSTALLED.iterdir():
        (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    assert len(load("fashion-mnist", folder=str(tmp_path)).test) == 10_000
    path = tmp_path / "t10k-images-idx3-ubyte"
    flip(path, 5000)
    assert_refused("fashion-mnist", path, checksums.FASHION_MNIST[path.name])
    told = esper("data", "fashion-mnist", "--from", str(tmp_path))
    assert told.exit_code == 9
    assert len(told.stderr.splitlines()) == 1
    shutil.rmtree(tmp_path)
