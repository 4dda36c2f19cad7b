"""The digits are those of scikit-learn, read without importing it where that can be."""

from __future__ import annotations

import sys

import pytest
import torch

from esper_overwatch.trainer.data import digits as module
from esper_overwatch.trainer.data.dataset import Dataset

torch.set_num_threads(1)


def numbers(data: Dataset) -> list[torch.Tensor]:
    return [tensor for split in (data.train, data.val, data.test) for tensor in (split.images, split.labels)]


def test_digits_are_those_that_scikit_learn_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "sklearn.datasets", None)  # to import it fails
        read = numbers(module.digits())
    monkeypatch.setattr(module, "DIGITS_FILE", "nowhere.csv.gz")
    loaded = numbers(module.digits())
    assert [(t.shape, t.dtype) for t in read] == [(t.shape, t.dtype) for t in loaded]
    assert all(torch.equal(one, other) for one, other in zip(read, loaded, strict=True))
    assert sum(len(t) for t in read[1::2]) == 1797
