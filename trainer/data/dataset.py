"""A dataset: images as bytes on the training device, in three splits, checked once when it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.compute import rng

from .augment import Augment
from .images import Images
from .task import Part

VALIDATION_SHARE, MAX_VALIDATION = 0.1, 1000
"""Validation images as a share of the training files, and at most; they are evaluated in every epoch."""


class DataError(EsperError):
    """A dataset cannot be used; the message names it, the fault and what to do."""

    exit_code = 9


@dataclass(frozen=True)
class Split:
    """Images and labels that belong together."""

    images: Tensor
    """uint8 [M, C, H, W]."""
    labels: Tensor
    """int64 [M], 0..classes-1."""

    def __len__(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Split:
        """Move to a device; images of several channels in the memory order they are gathered in."""
        images = self.images.to(device)
        if images.shape[1] > 1:
            images = images.contiguous(memory_format=torch.channels_last)
        return Split(images, self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """Images to learn.

    The policy is rewarded on `val`; `test` is only reported. `mean` and `std` are those of the training
    images, per channel, in units of the stored bytes.
    """

    name: str
    classes: int
    shape: tuple[int, int, int]
    """C, H, W."""
    train: Split
    val: Split
    test: Split
    mean: Tensor
    """float64 [C]."""
    std: Tensor
    """float64 [C]."""
    kind: Literal["images"] = "images"

    @classmethod
    def of(cls, name: str, classes: int, train: Split, val: Split, test: Split) -> Dataset:
        """Check the splits, make their labels int64 and measure the normalisation.

        Raises:
            DataError: there is one class, a split is empty, its shapes disagree, or a label is no whole
                number or out of range.
        """
        if classes < 2:
            raise DataError(f"{name}: a task needs two classes at least, not {classes}")
        train, val, test = (
            _checked(f"{name}: {part} split", split, classes, train.images.shape[1:])
            for part, split in (("train", train), ("validation", val), ("test", test))
        )
        channels, height, width = train.images.shape[1:]
        return cls(name, classes, (channels, height, width), train, val, test, *_mean_and_std(train.images))

    def to(self, device: torch.device | str) -> Dataset:
        """Move its tensors to a device."""
        return replace(
            self,
            train=self.train.to(device),
            val=self.val.to(device),
            test=self.test.to(device),
            mean=self.mean.to(device),
            std=self.std.to(device),
        )

    @property
    def chance(self) -> float:
        """Accuracy of a guess that ignores the image; classes are taken to be equally frequent."""
        return 1.0 / self.classes

    @property
    def perplexity(self) -> float:
        """exp of the loss of a guess that ignores the image."""
        return float(self.classes)

    def examples(self, part: Part, dtype: torch.dtype, augment: Sequence[str] = ()) -> Images:
        """The images of a split, as normalised inputs of that dtype."""
        split: Split = getattr(self, part)
        moved = Augment(augment) if augment else None
        return Images(split.images, split.labels, self.mean, self.std, dtype, moved)


def _mean_and_std(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, float64 [C]; from counts of the 256 levels, without a copy of the
    images."""
    levels = torch.arange(256, dtype=torch.float64)
    channels = range(images.shape[1])
    counts = torch.stack([torch.bincount(images[:, c].flatten(), minlength=256) for c in channels]).double()
    pixels = counts.sum(1)
    mean = counts @ levels / pixels
    variance = (counts * (levels - mean.unsqueeze(1)) ** 2).sum(1) / pixels
    return mean, variance.sqrt().clamp_min(1e-6)


def _checked(what: str, split: Split, classes: int, shape: torch.Size) -> Split:
    """The split, with labels as int64."""
    images, labels = split.images, split.labels
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1:] != shape:
        wanted = "x".join(map(str, shape))
        raise DataError(
            f"{what}: images are {images.dtype} {tuple(images.shape)}, not uint8 [M, {wanted}]; "
            "the files do not belong together"
        )
    if len(images) == 0 or labels.shape != (len(images),):
        raise DataError(
            f"{what}: {len(images)} images but labels of shape {tuple(labels.shape)}; get the files again"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(f"{what}: labels are {labels.dtype}; make them whole numbers, such as torch.int64")
    labels = labels.long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{what}: labels run from {low} to {high}, not within 0..{classes - 1}; get the label file again"
        )
    return Split(images, labels)


def split_off_validation(files: Split) -> tuple[Split, Split]:
    """Divide the images of the training files into those to train on and those to validate on.

    The validation images are a stratified sample, the same in every run.
    """
    share = min(VALIDATION_SHARE, MAX_VALIDATION / len(files))
    train, val = split_stratified(files.labels, (1.0 - share, share))
    return Split(files.images[train], files.labels[train]), Split(files.images[val], files.labels[val])


def split_stratified(labels: Tensor, fractions: tuple[float, ...]) -> list[Tensor]:
    """Split indices so that every class is divided in the same proportions, always in the same way.

    Args:
        labels: int64 [M].
        fractions: shares that sum to 1, one per split.

    Returns:
        One sorted int64 index tensor per fraction; together they hold every index once.
    """
    total = labels.shape[0]
    shuffled = rng.permutation(rng.key(0, rng.Purpose.SPLIT), total)
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    size = torch.bincount(labels)[labels[by_class]]
    first = (torch.cumsum(torch.bincount(labels), 0) - torch.bincount(labels))[labels[by_class]]
    position = (torch.arange(total) - first + 0.5) / size
    edges = torch.cumsum(torch.tensor(fractions, dtype=torch.float64), 0)[:-1]
    part = torch.bucketize(position.double(), edges)
    return [by_class[part == k].sort().values for k in range(len(fractions))]
