"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .dataset import DataError, Dataset
from .digits import digits
from .synthetic import synthetic

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits, "synthetic": synthetic}


def load(name: str, device: torch.device | str = "cpu") -> Dataset:
    """Read, check and move a dataset to `device`.

    Raises:
        DataError: no such dataset, or its data is damaged.
    """
    if name not in DATASETS:
        raise DataError(f"no dataset named {name!r}; there are {', '.join(sorted(DATASETS))}")
    return DATASETS[name]().to(device)
