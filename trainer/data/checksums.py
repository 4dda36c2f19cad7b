"""Checksums of the files of well-known datasets, as they were published.

They are of the unpacked content: packages zip the same files again, with other bytes around them. Those of
CIFAR's Python batches are in torchvision too; of its binary batches none are published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from .dataset import DataError
from .files import blocks

MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 by file, like those that follow."""
FASHION_MNIST = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def verify(name: str, files: Mapping[str, Path], published: Mapping[str, str]) -> None:
    """Compare the files of a dataset with what was published.

    Args:
        files: by the names they were published under.
        published: MD5 by the same names; others are not compared.

    Raises:
        DataError: one is not the published one.
    """
    for known, path in files.items():
        expected = published.get(known)
        if expected is not None and (found := _md5(path)) != expected:
            raise DataError(
                f"{path}: its content has the MD5 {found}, and {known} of {name} as published {expected}; "
                "get the file again, or register a variant of your own under another name"
            )


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()
