"""Datasets by name: found, registered, changed behind the back, and the real one where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from esper_overwatch.trainer.data import registry
from esper_overwatch.trainer.data.dataset import DataError, Split, split_off_validation
from esper_overwatch.trainer.data.registrations import DatasetContents
from esper_overwatch.trainer.data.registry import KNOWN_DATASETS, list_datasets, load, register
from tests.trainer.data import folders

torch.set_num_threads(1)

INSTALLED = KNOWN_DATASETS["fashion-mnist"].folder
assert INSTALLED is not None


@pytest.mark.parametrize(
    ("form", "folder", "holds"),
    [
        ("idx", lambda path: folders.idx_folder(path), DatasetContents(3, (1, 6, 5), 54, 6, 20)),
        (
            "cifar10",
            lambda path: folders.cifar10_folder(path, "binary"),
            DatasetContents(10, (3, 32, 32), 90, 10, 20),
        ),
        (
            "cifar10",
            lambda path: folders.cifar10_folder(path, "python"),
            DatasetContents(10, (3, 32, 32), 90, 10, 20),
        ),
        ("cifar100", lambda path: folders.cifar100_folder(path, "python", 1000), None),
    ],
)
def test_a_registered_folder_is_a_dataset_from_then_on(
    tmp_path: Path, form: str, folder: object, holds: DatasetContents | None
) -> None:
    assert callable(folder)
    where = folder(tmp_path / "files")
    registration = register("mine", where)
    assert registration.format == form
    data = load("mine")
    assert DatasetContents.of(data) == registration.holds
    if holds is not None:
        assert registration.holds == holds
    assert data.name == "mine"
    (row,) = [entry for entry in list_datasets() if entry.name == "mine"]
    assert (row.folder, row.ready, row.holds) == (str(where), True, registration.holds)


def test_data_dir_goes_before_the_registered_folder(tmp_path: Path) -> None:
    register("mine", folders.idx_folder(tmp_path / "one"))
    shutil.move(tmp_path / "one", tmp_path / "two")
    with pytest.raises(DataError, match="one: no such folder"):
        load("mine")
    assert len(load("mine", folder=str(tmp_path / "two")).train) == 54


def test_splits_of_files_are_disjoint_and_reproducible(tmp_path: Path) -> None:
    register("mine", folders.idx_folder(tmp_path / "files"))
    one, two = load("mine"), load("mine")
    assert torch.equal(one.train.images, two.train.images)
    images = torch.cat([one.train.images, one.val.images]).flatten(1)
    assert len(images.unique(dim=0)) == 60
    assert one.val.labels.bincount().tolist() == [2, 2, 2]
    assert len(one.test) == 20


def test_validation_split_is_a_tenth_up_to_a_thousand() -> None:
    for total, val in ((1000, 100), (60_000, 1000)):
        labels = torch.arange(total) % 10
        train, held = split_off_validation(Split(torch.zeros(total, 1, 1, 1, dtype=torch.uint8), labels))
        assert (len(train), len(held)) == (total - val, val)
        assert held.labels.bincount().tolist() == [val // 10] * 10


@pytest.mark.parametrize(
    ("name", "folder", "words"),
    [
        (
            "nope",
            "",
            ["'nope'", "digits, synthetic, texture", "text, mnist, fashion-mnist, cifar10", "--from"],
        ),
        ("../mine", "", ["no dataset named '../mine'"]),
        ("digits", "/somewhere", ["task.data_dir = /somewhere", "digits has no files"]),
        ("text", "relative", ["task.data_dir = relative", "the complete path"]),
        ("text", "/nowhere/a.txt", ["/nowhere/a.txt: no such file"]),
        ("mnist", "relative", ["task.data_dir = relative", "the complete path"]),
        ("mnist", "/nowhere/at/all", ["/nowhere/at/all: no such folder", "mnist"]),
        ("mnist", "", ["mnist: its files are not here", "task.data_dir", "esper-daemon data mnist --from"]),
    ],
)
def test_what_cannot_be_loaded_says_why_and_what_to_do(name: str, folder: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load(name, folder=folder)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_part_of_a_known_dataset_is_refused_under_its_name(tmp_path: Path) -> None:
    folders.cifar10_folder(tmp_path, "binary")
    with pytest.raises(DataError, match="100 training and 20 test images; cifar10 has 50000 and 10000"):
        load("cifar10", folder=str(tmp_path))


def test_files_that_changed_since_are_not_taken_silently(tmp_path: Path) -> None:
    register("mine", folders.idx_folder(tmp_path / "files"))
    folders.idx_folder(tmp_path / "files", train=90)
    with pytest.raises(DataError, match=r"holds 81 \+ 9 \+ 20 images.*registered with 54 \+ 6 \+ 20"):
        load("mine")
    register("mine", tmp_path / "files")
    assert len(load("mine").train) == 81


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a/b", "is not a name for a dataset"),
        ("x" * 33, "is not a name for a dataset"),
        ("digits", "digits comes with the package; choose another name"),
        ("cifar10", "holds idx files, and cifar10 is cifar10"),
    ],
)
def test_names_that_cannot_be_registered(tmp_path: Path, home: Path, name: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        register(name, folders.idx_folder(tmp_path / "files"))
    assert words in str(caught.value)
    assert not list(home.glob("datasets/*"))


def test_folder_without_dataset_suggests_the_subfolder_that_has_one(tmp_path: Path) -> None:
    inner = folders.idx_folder(tmp_path / "outer" / "MNIST" / "raw")
    with pytest.raises(DataError, match=f"did you mean {inner}"):
        register("mine", tmp_path / "outer")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no dataset in it"):
        register("mine", tmp_path / "empty")
    with pytest.raises(DataError, match="none: no such folder"):
        register("mine", tmp_path / "none")


def test_a_damaged_registration_is_named(home: Path) -> None:
    (home / "datasets").mkdir(parents=True)
    path = home / "datasets" / "old.json"
    path.write_text('{"format": 3}')
    with pytest.raises(DataError, match=r"old\.json: .*remove it and register the dataset again"):
        load("mnist")
    assert load("digits").classes == 10, "what is made here needs no registration"


def test_a_published_name_can_have_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = registry.KnownDataset("idx", 3, 60, 20)
    monkeypatch.setitem(KNOWN_DATASETS, "mnist", small)
    register("mnist", folders.idx_folder(tmp_path / "files"))
    assert load("mnist").shape == (1, 6, 5)


def test_groups_of_hosts_gather_from_the_same_memory(tmp_path: Path) -> None:
    folders.cifar10_folder(tmp_path, "binary")
    register("mine", tmp_path)
    data = load("mine")
    layouts = [data.examples("train", torch.float32).pixels_MHWC for _ in range(2)]
    assert {layout.data_ptr() for layout in layouts} == {data.train.images.data_ptr()}


def test_images_of_one_channel_are_in_channels_last_memory_too() -> None:
    examples = load("digits").examples("val", torch.float32)
    x, _ = examples.span(0, 16)
    weight = torch.ones(8, 1, 1, 1)
    assert torch.nn.functional.conv2d(x, weight).stride() == (512, 1, 64, 8)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED.is_dir(), reason="the package dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist() -> None:
    data = load("fashion-mnist")
    assert DatasetContents.of(data) == DatasetContents(10, (1, 28, 28), 59_000, 1_000, 10_000)
    assert data.val.labels.bincount().tolist() == [100] * 10
    assert data.test.labels[:8].tolist() == [9, 2, 1, 1, 6, 1, 4, 6]
    assert data.mean.item() / 255 == pytest.approx(0.2860, abs=5e-4)
    assert data.std.item() / 255 == pytest.approx(0.3530, abs=5e-4)
