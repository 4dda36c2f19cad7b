"""A mixture of tasks: each env draws one of them, and an instance of it, for each episode.

All have images of one shape. The hosts have an output for each class of the task with the most; in an env
whose task has fewer, the outputs that are left over are taken for impossible, in the loss as in answers, so
that neither loss nor gradient knows them. Chance, the loss of a guess and the normalisation are those of each
env's own task and instance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.device import upload_together

from .augment import Augment
from .dataset import DataError, Dataset, Split
from .task import NO_LABEL, Kind, Part

MIXTURE = "mixture"
"""Name of such a task as a whole."""


@dataclass(frozen=True)
class Instances:
    """A task of a mixture."""

    name: str
    datasets: tuple[Dataset, ...]
    """Its instances: one where it is read from files."""


@dataclass(frozen=True)
class Mixture:
    """Tasks of one shape; `draw` says which an env learns."""

    tasks: tuple[Instances, ...]
    name: str = MIXTURE
    kind: Kind = "images"

    @classmethod
    def of(cls, tasks: Sequence[Instances]) -> Mixture:
        """Check that the tasks go together.

        Raises:
            DataError: their images differ in shape.
        """
        first = tasks[0]
        for task in tasks:
            for data in task.datasets:
                if data.shape != first.datasets[0].shape:
                    here, there = (
                        "x".join(map(str, shape)) for shape in (data.shape, first.datasets[0].shape)
                    )
                    raise DataError(
                        f"task.mixture: images of {task.name} are {here}, those of {first.name} {there}; "
                        "name tasks of one shape"
                    )
        return cls(tuple(tasks))

    @property
    def datasets(self) -> list[Dataset]:
        """Datasets of all tasks, all instances in order; `draw` gives places in it."""
        return [data for task in self.tasks for data in task.datasets]

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of an image."""
        return self.datasets[0].shape

    @property
    def classes(self) -> int:
        """Classes of the task that has the most."""
        return max(data.classes for data in self.datasets)

    @property
    def train(self) -> Split:
        """Training split of the instance that has the fewest examples; `val` and `test` likewise."""
        return min((data.train for data in self.datasets), key=len)

    @property
    def val(self) -> Split:
        return min((data.val for data in self.datasets), key=len)

    @property
    def test(self) -> Split:
        return min((data.test for data in self.datasets), key=len)

    @property
    def chance(self) -> float:
        """Chance accuracy of the task whose guess is best; each env has its own."""
        return max(data.chance for data in self.datasets)

    @property
    def perplexity(self) -> float:
        """Perplexity of the task whose guess is worst; each env has its own."""
        return max(data.perplexity for data in self.datasets)

    def to(self, device: torch.device | str) -> Mixture:
        """Move its tensors to a device."""
        moved = (
            Instances(task.name, tuple(data.to(device) for data in task.datasets)) for task in self.tasks
        )
        return replace(self, tasks=tuple(moved))

    def draw(self, seed: int, envs: Tensor, round_: int) -> NDArray[np.int64]:
        """Places in `datasets` of what envs learn in a round: int64 [n].

        Each task is as likely as another, and so is each of its instances.

        Args:
            envs: int64 [n], global indices, in host memory.
        """
        words = rng.bits(rng.key(seed, rng.Purpose.TASK, envs, round_), 2)
        counts = torch.tensor([len(task.datasets) for task in self.tasks])
        task = words[:, 0].remainder(len(self.tasks))
        places = (counts.cumsum(0) - counts)[task] + words[:, 1].remainder(counts[task])
        return places.numpy()

    def names(self, seed: int, envs: int, copies: int, round_: int) -> list[tuple[str, int]]:
        """Task and instance of envs 0 to `envs` - 1 in a round; `copies` in a row are of one host."""
        known = [(task.name, i) for task in self.tasks for i in range(len(task.datasets))]
        return [known[place] for place in self.draw(seed, torch.arange(envs) // copies, round_).tolist()]

    def guesses(self) -> NDArray[np.float32]:
        """Accuracies and losses of a guess of each of `datasets`, [2, datasets]."""
        guesses = [(data.chance, math.log(data.perplexity)) for data in self.datasets]
        return np.array(guesses, dtype=np.float32).T

    def examples(self, part: Part, dtype: torch.dtype, augment: Sequence[str] = ()) -> EnvImages:
        """A split, of the first instance for one env; `EnvImages.of_envs` gives those of others."""
        moved = Augment(augment) if augment else None
        source = MixtureImages(self.datasets, part, self.classes, dtype, moved)
        return EnvImages(source, np.zeros(1, dtype=np.int64))


class MixtureImages:
    """The images of a split of all instances, one copy on the device.

    Args:
        datasets: instances.
        part: the split.
        classes: outputs of the hosts.
        dtype: of inputs.
        augment: what is done to the images of a batch.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        part: Part,
        classes: int,
        dtype: torch.dtype,
        augment: Augment | None = None,
    ) -> None:
        splits: list[Split] = [getattr(data, part) for data in datasets]
        self.pixels_MHWC = torch.cat([split.images for split in splits]).permute(0, 2, 3, 1).contiguous()
        self.labels_M = torch.cat([split.labels for split in splits])
        self.lengths = [len(split) for split in splits]
        self.classes, self.counts = classes, [data.classes for data in datasets]
        std, mean = (torch.stack([getattr(data, name) for data in datasets]) for name in ("std", "mean"))
        self.scale, self.shift = (1.0 / std).to(dtype), (-mean / std).to(dtype)
        self.augment = augment


class EnvImages:
    """The images of n envs, each from an instance of its own.

    Args:
        source: all instances.
        places: int64 [n] among the instances.
    """

    def __init__(self, source: MixtureImages, places: NDArray[np.int64]) -> None:
        self._source = source
        lengths, counts = np.array(source.lengths), np.array(source.counts)
        rows = (places, lengths[places], (lengths.cumsum() - lengths)[places], counts[places])
        at, answers, self._first, classes = upload_together(rows, source.labels_M.device)
        self.lengths: list[int] | None = lengths[places].tolist()
        self.answers: int | Tensor = answers
        """int64 [n], labels of each env in all."""
        self._lengths_n1 = self.answers.unsqueeze(1)
        self._scale, self._shift = source.scale[at].flatten(), source.shift[at].flatten()
        self._longest = int(lengths[places].max())
        self.absent: Tensor | None = None
        """bool [n, classes], outputs that are no class of the env's task; None where all are."""
        if min(source.counts) < source.classes:
            self.absent = torch.arange(source.classes, device=at.device) >= classes.unsqueeze(1)

    def of_envs(self, places: NDArray[np.int64]) -> EnvImages:
        """This split for other envs; nothing is copied."""
        return EnvImages(self._source, places)

    def __len__(self) -> int:
        return self._longest

    @property
    def numbers(self) -> int:
        """Numbers in one image."""
        return self._source.pixels_MHWC[0].numel()

    @property
    def varies(self) -> bool:
        """True if a batch depends on keys."""
        return self._source.augment is not None

    def batch(self, index_nB: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W] and labels [n, B] for images `index_nB[i]` of what env i learns.

        Args:
            keys: int64 [n], of what happens to the images; needed where they vary.
        """
        source = self._source
        index_nB = index_nB + self._first.unsqueeze(1)
        n, batch = index_nB.shape
        chosen = source.pixels_MHWC.index_select(0, index_nB.t().flatten())
        chosen = chosen.view(batch, n, *chosen.shape[1:])
        if source.augment is not None and keys is not None:
            chosen = source.augment(chosen, keys)
        batch, n, height, width, channels = chosen.shape
        pixels = chosen.permute(0, 2, 3, 1, 4).reshape(batch, height, width, n * channels)
        inputs = torch.addcmul(self._shift, pixels, self._scale).permute(0, 3, 1, 2)
        return inputs, source.labels_M.take(index_nB)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, n*C, H, W] and labels [n, B] of images `start` to `stop`, or to the end, of each env.

        Where an env has fewer than the others, its last image fills up and its label is `NO_LABEL`.
        """
        places = torch.arange(start, min(stop, len(self)), device=self._first.device)
        left = self._lengths_n1
        inputs, labels = self.batch(torch.minimum(places.unsqueeze(0), left - 1))
        return inputs, labels.masked_fill(places >= left, NO_LABEL)
