"""Handwritten digits: 1,797 images of 8x8 that scikit-learn carries in its package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from .dataset import Dataset, Split, split_stratified

DIGITS_FILE = "datasets/data/digits.csv.gz"
"""File in scikit-learn's folder; a row per image: 64 pixels from 0 to 16, and the class."""


def digits() -> Dataset:
    """60 % for training, 20 % for validation, 20 % for the test, stratified by class."""
    rows = torch.from_numpy(_read_rows())
    images, labels = rows[:, :-1].reshape(-1, 1, 8, 8).to(torch.uint8), rows[:, -1].contiguous()
    train, val, test = (Split(images[i], labels[i]) for i in split_stratified(labels, (0.6, 0.2, 0.2)))
    return Dataset.of("digits", 10, train, val, test)


def _read_rows() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """int64 [1797, 65]. Importing scikit-learn takes more than a second of CPU; its file is read without."""
    spec = find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / DIGITS_FILE
        if file.exists():
            return np.loadtxt(file, delimiter=",", dtype=np.int64)
    from sklearn.datasets import load_digits  # a release that keeps the file elsewhere

    source = load_digits()
    return np.column_stack([source.data, source.target]).astype(np.int64)
