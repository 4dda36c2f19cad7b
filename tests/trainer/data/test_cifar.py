"""CIFAR's two layouts in their two formats, and pickles that want more than to be data."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.data.cifar import read_cifar10, read_cifar100
from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.unpickle import load_plain
from tests.trainer.data import folders

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar10_is_what_was_written(tmp_path: Path, kind: str) -> None:
    files = read_cifar10(folders.cifar10_folder(tmp_path, kind), None)
    expected = torch.cat([folders.images(20, 3, 32, 32, part=i) for i in range(5)])
    assert files.classes == 10
    assert torch.equal(files.train.images, expected)
    assert files.train.labels.tolist() == 5 * folders.labels(20, 10)
    assert torch.equal(files.test.images, folders.images(20, 3, 32, 32, part=5))


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar100_has_the_fine_classes(tmp_path: Path, kind: str) -> None:
    files = read_cifar100(folders.cifar100_folder(tmp_path, kind), None)
    assert files.classes == 100
    assert files.train.labels.tolist() == folders.labels(200, 100)
    assert torch.equal(files.test.images, folders.images(100, 3, 32, 32, part=1))


def test_the_batches_of_these_tests_are_what_numpy_pickles() -> None:
    batch = pickle.loads(folders.cifar_python(4, {b"labels": [3, 1, 4, 1]}), encoding="bytes")
    assert batch[b"labels"] == [3, 1, 4, 1]
    assert batch[b"data"].dtype == "uint8"
    assert torch.equal(torch.from_numpy(batch[b"data"].copy()), folders.images(4, 3072))


def narrow(labels: list[int]) -> bytes:
    return folders.python2_pickle({b"labels": labels, b"data": folders.images(4, 3000)})


@pytest.mark.parametrize(
    ("kind", "name", "damage", "words"),
    [
        ("binary", "data_batch_3.bin", lambda c: c[:-1], "61459 bytes are not a multiple"),
        ("binary", "data_batch_3.bin", lambda c: b"", "0 bytes are not a multiple"),
        ("binary", "data_batch_2.bin", lambda c: b"\x0a" + c[1:], "label 10 is not within 0..9"),
        ("python", "data_batch_3", lambda c: c[:-9], "not a batch that can be read safely"),
        ("python", "data_batch_3", lambda c: b"", "not a batch that can be read safely"),
        ("python", "data_batch_3", lambda c: folders.python2_pickle({b"data": []}), "'data' and 'labels'"),
        ("python", "data_batch_3", lambda c: narrow([1, 2, 3, 4]), "as 4x3000 pixels, not rows of 3072"),
        ("python", "test_batch", lambda c: folders.cifar_python(4, {b"labels": [1, 2]}), "2 labels for 4"),
        ("python", "test_batch", lambda c: folders.cifar_python(2, {b"labels": [1, 10]}), "label 10 is not"),
        ("python", "test_batch", lambda c: folders.cifar_python(2, {b"labels": [1, -1]}), "from 0 to 255"),
        ("python", "test_batch", lambda c: c.replace(b"U\x02u1", b"U\x02f4"), "not a matrix of"),
    ],
)
def test_a_fault_is_a_line_that_names_the_file(
    tmp_path: Path, kind: str, name: str, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = folders.cifar10_folder(tmp_path, kind) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_cifar10(tmp_path, None)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(("kind", "name"), [("binary", "data_batch_4.bin"), ("python", "data_batch_4")])
def test_a_missing_batch_is_named(tmp_path: Path, kind: str, name: str) -> None:
    path = folders.cifar10_folder(tmp_path, kind) / name
    path.unlink()
    with pytest.raises(DataError) as caught:
        read_cifar10(tmp_path, None)
    assert str(caught.value).startswith(f"{path}: no such file")


class Gadget:
    """Pickled, it makes whoever unpickles it call something."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("function", [os.mkdir, eval, getattr, __import__])
def test_a_pickle_that_calls_something_is_refused_before_it_does(
    tmp_path: Path, function: Callable[..., object], protocol: int
) -> None:
    path, mark = tmp_path / "data_batch_1", tmp_path / "was-here"
    path.write_bytes(pickle.dumps({b"data": Gadget(function, str(mark))}, protocol))
    with pytest.raises(DataError, match="it asks for"):
        load_plain(path)
    assert not mark.exists()


@pytest.mark.parametrize("method", [b"tofile", b"__class__", b"__setstate__.__globals__"])
def test_attributes_of_admitted_names_are_refused(tmp_path: Path, method: bytes) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.PROTO + b"\x04cnumpy\nndarray." + method + b"\n.")
    with pytest.raises(DataError, match=r"it asks for numpy\.ndarray\."):
        load_plain(path)


def test_a_number_in_the_file_does_not_reserve_memory(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.PROTO + b"\x02}r\xff\xff\xff\x7f.")
    assert load_plain(path) == {}


@given(at=st.integers(0), what=st.binary(min_size=1, max_size=6))
def test_no_damage_runs_anything_or_gets_past_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, what: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "batch"
    whole = folders.python2_pickle({b"labels": [1, 2], b"data": folders.images(2, 5)})
    at %= len(whole)
    path.write_bytes(whole[:at] + what + whole[at + len(what) :])
    with suppress(DataError):
        loaded = load_plain(path)
        assert type(loaded).__module__ in ("builtins", "esper_overwatch.trainer.data.unpickle")
