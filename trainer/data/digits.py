"""Handwritten digits: 1,797 images of 8x8 that scikit-learn carries in its package."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from .dataset import Dataset, Split, split_stratified


def digits() -> Dataset:
    """60 % for training, 20 % for validation, 20 % for the test, stratified by class."""
    source = load_digits()
    images = torch.from_numpy(source.images.astype("uint8")).unsqueeze(1)
    labels = torch.from_numpy(source.target.astype("int64"))
    train, val, test = (Split(images[i], labels[i]) for i in split_stratified(labels, (0.6, 0.2, 0.2)))
    return Dataset.of("digits", 10, train, val, test)
