"""Tasks computed from a seed: 2,000 images of 1x8x8 in 10 classes, which cost what the digits cost.

What tells their classes apart differs, so that different seeds pay: filters in `texture`, the place of a
blob in `layout`, which quarters hold a lit pixel in `quadrants`, the mean grey in `histogram`, which a host
sees without any seed. Another seed makes another instance of the same difficulty.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.trainer.compute import rng

from .dataset import Dataset, Split, split_stratified

CLASSES, SIDE, NUM_IMAGES = 10, 8, 2000
SHARES = (0.6, 0.2, 0.2)
"""Shares of the images to train, to validate and to test on."""
_LABELS = torch.arange(NUM_IMAGES) % CLASSES


def texture(seed: int = 0) -> Dataset:
    """Noise filtered by a 3x3 kernel for each class; all images have the same histogram."""
    key = _key("texture", seed)
    kernels = rng.normal(rng.fold(key, 0), CLASSES * 9).view(CLASSES, 1, 3, 3)
    noise = rng.normal(rng.fold(key, 1), NUM_IMAGES * (SIDE + 2) ** 2).view(1, NUM_IMAGES, SIDE + 2, SIDE + 2)
    filtered = F.conv2d(noise, kernels[_LABELS], groups=NUM_IMAGES)
    return _dataset("texture", 255 * _ranked(filtered.view(NUM_IMAGES, -1)))


def layout(seed: int = 0) -> Dataset:
    """A bright blob of 2x2 pixels on noise, at a place for each class."""
    key = _key("layout", seed)
    images = 140 * _noise(key)
    cells = rng.permutation(rng.fold(key, 1), (SIDE // 2) ** 2)[:CLASSES][_LABELS]
    blobs = torch.zeros(NUM_IMAGES, (SIDE // 2) ** 2).scatter_(1, cells.unsqueeze(1), 115.0)
    blobs = blobs.view(-1, SIDE // 2, SIDE // 2).repeat_interleave(2, 1).repeat_interleave(2, 2)
    return _dataset("layout", images + blobs.flatten(1))


def quadrants(seed: int = 0) -> Dataset:
    """A lit pixel somewhere in one or two of the quarters of an image of noise; which, is the class."""
    key = _key("quadrants", seed)
    images = (120 * _noise(key)).view(NUM_IMAGES, 2, SIDE // 2, 2, SIDE // 2).transpose(2, 3)
    patterns = torch.zeros(CLASSES, 4, dtype=torch.bool)
    for row, quarters in enumerate([*combinations(range(4), 1), *combinations(range(4), 2)]):
        patterns[row, list(quarters)] = True
    lit = patterns[rng.permutation(rng.fold(key, 1), CLASSES)][_LABELS]
    pixels = (SIDE // 2) ** 2
    places = rng.bits(rng.fold(key, 2), NUM_IMAGES * 4).remainder(pixels).view(NUM_IMAGES, 4, 1)
    images = images.reshape(NUM_IMAGES, 4, pixels)
    images = images.scatter(2, places, torch.where(lit.unsqueeze(2), 255.0, images.gather(2, places)))
    back = images.view(NUM_IMAGES, 2, 2, SIDE // 2, SIDE // 2).transpose(2, 3)
    return _dataset("quadrants", back.reshape(NUM_IMAGES, -1))


def histogram(seed: int = 0) -> Dataset:
    """Noise with a mean grey for each class; no pixel tells more than another."""
    key = _key("histogram", seed)
    noise = rng.normal(rng.fold(key, 0), NUM_IMAGES * SIDE**2).view(NUM_IMAGES, -1)
    grey = 30 + 20 * rng.permutation(rng.fold(key, 1), CLASSES)[_LABELS].float()
    grey = grey + 5 * rng.normal(rng.fold(key, 2), NUM_IMAGES)
    return _dataset("histogram", 10 * (noise - noise.mean(1, keepdim=True)) + grey.unsqueeze(1))


GENERATED_TASKS: dict[str, Callable[[int], Dataset]] = {
    "texture": texture,
    "layout": layout,
    "quadrants": quadrants,
    "histogram": histogram,
}


def _key(name: str, seed: int) -> Tensor:
    return rng.key(seed, rng.Purpose.GENERATED, *name.encode())


def _noise(key: Tensor) -> Tensor:
    """float32 [M, H*W] in 0..1, with the same histogram in every image."""
    return _ranked(rng.normal(rng.fold(key, 0), NUM_IMAGES * SIDE**2).view(NUM_IMAGES, -1))


def _ranked(values: Tensor) -> Tensor:
    """Each pixel's rank in its image, [M, H*W] in 0..1."""
    return values.argsort(1).argsort(1).float() / (values.shape[1] - 1)


def _dataset(name: str, images: Tensor) -> Dataset:
    """Split images [M, H*W] with levels 0..255."""
    pixels = images.clamp(0, 255).round().to(torch.uint8).view(-1, 1, SIDE, SIDE)
    parts = (Split(pixels[i], _LABELS[i]) for i in split_stratified(_LABELS, SHARES))
    return Dataset.of(name, CLASSES, *parts)
