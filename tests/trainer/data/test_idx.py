"""IDX files: what was written is what is read, and every fault is a line that names the file."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.files import read
from esper_overwatch.trainer.data.idx import read_folder, read_idx
from tests.trainer.data import folders

torch.set_num_threads(1)

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(("zipped", "dot"), [(True, False), (False, False), (False, True), (True, True)])
def test_what_was_written_is_read(tmp_path: Path, zipped: bool, dot: bool) -> None:
    files = read_folder(folders.idx_folder(tmp_path, zipped=zipped, dot=dot), None)
    assert files.classes == 3
    for i, split in enumerate((files.train, files.test)):
        count = (60, 20)[i]
        assert torch.equal(split.images, folders.images(count, 6, 5, part=i).unsqueeze(1))
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == folders.labels(count, 3)


def cut(content: bytes) -> bytes:
    return content[:-7]


def header(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (TRAIN_IMAGES, cut, "1793 bytes after the header, which says 60x6x5"),
        (TRAIN_IMAGES, lambda c: c + b"x", "1801 bytes"),
        (TRAIN_IMAGES, lambda c: header(c, 0, 1), "not an IDX file"),
        (TRAIN_IMAGES, lambda c: b"", "not an IDX file"),
        (TRAIN_IMAGES, lambda c: header(c, 2, 0x0D), "type 0x0d in 3 dimensions"),
        (TRAIN_IMAGES, lambda c: header(c, 3, 1), "in 1 dimensions, not unsigned bytes in 3"),
        (TRAIN_IMAGES, lambda c: header(c, 4, 255), "which says 4278190140x6x5"),
        (TRAIN_IMAGES, lambda c: folders.idx(torch.zeros(0, 6, 5)), "it is empty (0x6x5)"),
        (TRAIN_IMAGES, lambda c: cut(gzip.compress(c)), "the gzip file is cut short"),
        (TRAIN_IMAGES, lambda c: header(gzip.compress(c), 400, 0), "the gzip file is damaged"),
        (TRAIN_LABELS, lambda c: folders.idx(torch.arange(59) % 3), "59 labels for the 60 images"),
        (TRAIN_LABELS, lambda c: header(c, 20, 255), "labels run to 255, but none is 3"),
        (TRAIN_LABELS, lambda c: folders.idx(torch.arange(60) % 3 + 1), "none is 0: they must count from 0"),
        (TEST_LABELS, lambda c: header(c, 20, 3), "label 3 is not within 0..2"),
    ],
)
def test_a_fault_is_a_line_that_names_the_file(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = folders.idx_folder(tmp_path, zipped=False) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_folder(tmp_path, None)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert message.endswith("get the file again")
    assert "\n" not in message
    assert caught.value.exit_code == 9


def test_a_known_number_of_classes_holds_for_the_training_labels(tmp_path: Path) -> None:
    folders.idx_folder(tmp_path, classes=4)
    with pytest.raises(DataError, match=r"train-labels.*label 3 is not within 0\.\.2"):
        read_folder(tmp_path, 3)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = folders.idx_folder(tmp_path) / f"{TEST_LABELS}.gz"
    path.unlink()
    with pytest.raises(DataError) as caught:
        read_folder(tmp_path, None)
    assert str(caught.value).startswith(f"{path}: no such file")


@given(position=st.integers(0, 40), value=st.integers(0, 255), length=st.integers(0, 60))
def test_no_damage_gets_past_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, length: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    whole = bytearray(folders.idx(folders.images(2, 3, 4)))
    whole[position % len(whole)] = value
    path.write_bytes(whole[:length])
    with suppress(DataError):
        assert read_idx(path, 3).dim() == 3


def bomb(path: Path, head: bytes, size: int) -> None:
    """A small gzip file that holds a header and `size` zeros."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(head)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


@pytest.mark.parametrize("head", [b"", struct.pack(">4B3I", 0, 0, 8, 3, 60, 6, 5)])
def test_gzip_bomb_is_not_unpacked(tmp_path: Path, head: bytes) -> None:
    folder = folders.idx_folder(tmp_path, zipped=True)
    path = folder / f"{TRAIN_IMAGES}.gz"
    bomb(path, head, 64 << 20)
    tracemalloc.start()
    with pytest.raises(DataError, match=TRAIN_IMAGES):
        read_folder(folder, None)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


def test_gzip_bomb_of_other_formats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    bomb(path, b"", 8 << 20)
    with pytest.raises(DataError, match="more than 4194304 bytes"):
        read(path, 4 << 20)
