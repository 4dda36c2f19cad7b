"""Random colour images whose class is a faint pattern: a load for benchmarks, with something to learn."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.compute import rng

from .dataset import Dataset, Split

CLASSES = 10
SHAPE = (3, 32, 32)
NUM_TRAIN, HELD_OUT_SHARE = 4096, 512


def synthetic() -> Dataset:
    """4,096 training, 512 validation and 512 test images of 3x32x32 in 10 classes."""
    pixels = SHAPE[0] * SHAPE[1] * SHAPE[2]
    patterns = rng.normal(rng.key(0, rng.Purpose.SYNTHETIC, 0, torch.arange(CLASSES)), pixels)

    def split(part: int, count: int) -> Split:
        labels = torch.arange(count) % CLASSES
        noise = rng.normal(rng.key(0, rng.Purpose.SYNTHETIC, part, torch.arange(count)), pixels)
        levels = 128.0 + 40.0 * (noise + 0.5 * patterns[labels])
        return Split(levels.clamp(0, 255).to(torch.uint8).view(count, *SHAPE), labels)

    return Dataset.of(
        "synthetic", CLASSES, split(1, NUM_TRAIN), split(2, HELD_OUT_SHARE), split(3, HELD_OUT_SHARE)
    )
