"""Arrays of numpy as a dataset: shapes, kinds of numbers, splits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.registrations import DatasetContents
from esper_overwatch.trainer.data.registry import load, register

torch.set_num_threads(1)
NOISE = np.random.default_rng(5)
BYTES = NOISE.integers(0, 256, (50, 8, 9, 3), dtype=np.uint8)
LABELS = np.arange(50) % 5


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "mine.npz"
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (BYTES, (3, 8, 9)),
        (np.moveaxis(BYTES, 3, 1), (3, 8, 9)),
        (BYTES[..., 0], (1, 8, 9)),
        (BYTES / 255, (3, 8, 9)),
        (BYTES.astype(np.float32), (3, 8, 9)),
    ],
)
def test_every_layout_of_the_same_pixels_is_the_same_images(
    tmp_path: Path, x: np.ndarray[Any, Any], shape: tuple[int, int, int]
) -> None:
    registration = register(
        "mine", saved(tmp_path, x_train=x, y_train=LABELS, x_test=x[:10], y_test=LABELS[:10])
    )
    assert registration.format == "npz"
    assert registration.holds == DatasetContents(5, shape, 45, 5, 10)
    data = load("mine")
    wanted = torch.from_numpy(np.moveaxis(BYTES, 3, 1)[:10, : shape[0]].copy())
    assert torch.equal(data.test.images, wanted)
    assert data.test.labels.tolist() == LABELS[:10].tolist()


def test_without_a_test_part_a_fifth_is_it(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=BYTES, y_train=LABELS)
    register("mine", path)
    data = load("mine")
    assert DatasetContents.of(data) == DatasetContents(5, (3, 8, 9), 35, 5, 10)
    assert data.test.labels.bincount().tolist() == [2] * 5
    together = torch.cat([data.train.images, data.val.images, data.test.images])
    assert len(together.flatten(1).unique(dim=0)) == 50
    assert torch.equal(load("mine", folder=str(path)).test.images, data.test.images)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": BYTES, "y": LABELS}, "no array x_train in it .*np.savez"),
        ({"x_train": BYTES, "y_train": LABELS, "x_test": BYTES}, "no array y_test in it"),
        ({"x_train": BYTES[:, :, 0, 0], "y_train": LABELS}, r"shape \(50, 8\), a table; hosts convolve"),
        (
            {"x_train": BYTES[:, :, :, :, None], "y_train": LABELS},
            r"shape \(50, 8, 9, 3, 1\), not \[N, H, W\]",
        ),
        ({"x_train": BYTES[:0], "y_train": LABELS[:0]}, r"shape \(0, 8, 9, 3\)"),
        ({"x_train": BYTES[:, :3], "y_train": LABELS}, "either could be 1 to 4"),
        ({"x_train": BYTES[:, :, :, [0] * 9], "y_train": LABELS}, "neither is 1 to 4"),
        ({"x_train": BYTES.astype(np.int32), "y_train": LABELS}, "x_train is int32; make it uint8"),
        ({"x_train": BYTES - 128.0, "y_train": LABELS}, "runs from -128 to 127; scale it"),
        ({"x_train": BYTES * np.nan, "y_train": LABELS}, "runs from nan"),
        (
            {"x_train": BYTES / 255, "y_train": LABELS, "x_test": BYTES / 1.0, "y_test": LABELS},
            "only one is from 0 to 1",
        ),
        ({"x_train": BYTES, "y_train": LABELS[:9]}, r"y_train has shape \(9,\), not \(50,\)"),
        ({"x_train": BYTES, "y_train": LABELS / 2}, "y_train is float64; make it whole numbers"),
        ({"x_train": BYTES, "y_train": LABELS - 1}, "y_train has the label -1"),
        ({"x_train": BYTES, "y_train": LABELS * 2}, "labels run to 8, but none is 1"),
        (
            {"x_train": BYTES, "y_train": LABELS, "x_test": BYTES, "y_test": LABELS + 1},
            r"label 5 is not within 0\.\.4",
        ),
        (
            {"x_train": BYTES, "y_train": LABELS, "x_test": BYTES[:, 1:], "y_test": LABELS},
            "the files do not belong together",
        ),
        ({"x_train": BYTES, "y_train": np.array([{}] * 50)}, "not of objects"),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        register("mine", saved(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=BYTES, y_train=LABELS)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:500] + bytes(200) + whole[700:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"mine\.npz: this is not a whole \.npz file") as caught:
            register("mine", path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match="no such folder or file"):
        register("mine", path)


def test_other_files_are_pointed_to_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", BYTES)
    with pytest.raises(DataError, match=r"is not UTF-8 text: .* save arrays as \.npz"):
        register("mine", tmp_path / "mine.npy")
    path = saved(tmp_path, x_train=BYTES, y_train=LABELS)
    with pytest.raises(DataError, match=f"no dataset in it .*did you mean {path}"):
        register("mine", tmp_path)


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=BYTES, y_train=LABELS)
    register("mine", path)
    path.unlink()
    with pytest.raises(DataError, match=r"mine\.npz: cannot be read: No such file"):
        load("mine")
