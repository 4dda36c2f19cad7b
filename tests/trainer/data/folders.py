"""Folders of small datasets in the published formats, for tests."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng

GLOBAL_RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
CIFAR10_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))


def images(count: int, *shape: int, part: int = 0) -> Tensor:
    """uint8 [count, *shape] of noise, in which no two images are the same."""
    keys = rng.key(4, rng.Purpose.SYNTHETIC, part, torch.arange(count))
    return rng.bits(keys, torch.Size(shape).numel()).to(torch.uint8).view(count, *shape)


def labels(count: int, classes: int) -> list[int]:
    return [i % classes for i in range(count)]


def idx(values: Tensor) -> bytes:
    """An IDX file of unsigned bytes."""
    header = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
    return header + values.to(torch.uint8).numpy().tobytes()


def idx_folder(
    folder: Path, train: int = 60, test: int = 20, classes: int = 3, *, zipped: bool = True, dot: bool = False
) -> Path:
    """The four files of a dataset of 6x5 images."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (part, count) in enumerate((("train", train), ("t10k", test))):
        for what, values in (
            ("images-idx3-ubyte", images(count, 6, 5, part=i)),
            ("labels-idx1-ubyte", torch.tensor(labels(count, classes))),
        ):
            name = f"{part}-{what}".replace("-idx", ".idx" if dot else "-idx")
            path = folder / (name + ".gz" if zipped else name)
            path.write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
    return folder


def cifar_binary(count: int, classes: list[list[int]], part: int = 0) -> bytes:
    """Records of a binary batch; `classes` holds the label bytes, column by column."""
    columns = torch.tensor(classes, dtype=torch.uint8).t()
    return torch.cat([columns, images(count, 3072, part=part)], dim=1).numpy().tobytes()


def _text(value: bytes) -> bytes:
    short = len(value) < 256
    return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _list(values: list[int]) -> bytes:
    return b"](" + b"".join(map(_number, values)) + b"e"


def python2_array(values: Tensor) -> bytes:
    """The opcodes by which Python 2 pickles a numpy matrix of unsigned bytes."""
    dtype = b"cnumpy\ndtype\n" + _text(b"u1") + b"K\x00K\x01\x87R(K\x03" + _text(b"|") + b"NNN"
    dtype += _number(-1) + _number(-1) + b"K\x00tb"
    rows, columns = values.shape
    state = b"(K\x01" + _number(rows) + _number(columns) + b"\x86" + dtype + b"\x89"
    state += _text(values.numpy().tobytes()) + b"tb"
    return GLOBAL_RECONSTRUCT + b"cnumpy\nndarray\n" + b"K\x00\x85" + _text(b"b") + b"\x87R" + state


def python2_pickle(entries: dict[bytes, Tensor | list[int] | bytes]) -> bytes:
    """A dictionary as Python 2 pickles it by protocol 2: text is bytes without more ado."""
    items = b""
    for key, value in entries.items():
        items += _text(key)
        if isinstance(value, bytes):
            items += _text(value)
        else:
            items += _list(value) if isinstance(value, list) else python2_array(value)
    return pickle.PROTO + b"\x02}(" + items + b"u."


def cifar_python(count: int, classes: dict[bytes, list[int]], part: int = 0) -> bytes:
    """A Python batch."""
    return python2_pickle({b"batch_label": b"some batch", **classes, b"data": images(count, 3072, part=part)})


def cifar10_folder(folder: Path, kind: str, per_batch: int = 20) -> Path:
    """CIFAR-10's six files, "binary" or "python", with few images."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate((*CIFAR10_TRAIN, "test_batch")):
        classes = labels(per_batch, 10)
        if kind == "binary":
            (folder / f"{name}.bin").write_bytes(cifar_binary(per_batch, [classes], i))
        else:
            (folder / name).write_bytes(cifar_python(per_batch, {b"labels": classes}, i))
    return folder


def learnable_cifar_folder(folder: Path, classes: int, train: int, test: int) -> Path:
    """Python batches of CIFAR-10 or CIFAR-100 whose images show their class: coloured squares, and noise."""
    folder.mkdir(parents=True)
    squares = images(classes, 3, 4, 4, part=100).float()
    patterns = squares.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3).flatten(1)
    key, names = b"fine_labels", ["train", "test"]
    if classes == 10:
        key, names = b"labels", [*CIFAR10_TRAIN, "test_batch"]
    for i, name in enumerate(names):
        count = test if name.startswith("test") else train // (len(names) - 1)
        classes_of = labels(count, classes)
        mixed = 0.5 * images(count, 3072, part=i).float() + 0.5 * patterns[classes_of]
        batch = {key: classes_of, b"data": mixed.to(torch.uint8)}
        (folder / name).write_bytes(python2_pickle(batch))
    return folder


def cifar100_folder(folder: Path, kind: str, train: int = 200, test: int = 100) -> Path:
    """CIFAR-100's two files; the coarse label is a fifth of the fine one."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (name, count) in enumerate((("train", train), ("test", test))):
        fine = labels(count, 100)
        coarse = [label // 5 for label in fine]
        if kind == "binary":
            (folder / f"{name}.bin").write_bytes(cifar_binary(count, [coarse, fine], i))
        else:
            batch = {b"coarse_labels": coarse, b"fine_labels": fine}
            (folder / name).write_bytes(cifar_python(count, batch, i))
    return folder
