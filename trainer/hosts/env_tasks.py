"""The task of each env in an episode: the run's, or one that it draws from a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.data.mixture import EnvImages, Mixture
from esper_overwatch.trainer.data.task import Examples, Task
from esper_overwatch.trainer.measurements import Guess


class DatasetSplits(NamedTuple):
    """The examples of a task, laid out for gathering; one copy on the device serves all groups."""

    train: Examples
    val: Examples
    test: Examples


class EnvTasks:
    """Gives groups of envs their examples.

    Args:
        data: the run's task.
        envs: int64 [n], global indices, in host memory.
        dtype: of inputs.
        augment: as `task.augment`.
        device: where the examples are.
    """

    def __init__(
        self,
        data: Task,
        envs: Tensor,
        seed: int,
        dtype: torch.dtype,
        augment: Sequence[str],
        device: torch.device,
    ) -> None:
        self._envs, self._seed, self._device = envs, seed, device
        self._mixture = data if isinstance(data, Mixture) else None
        train, val, test = (
            data.examples("train", dtype, augment),
            data.examples("val", dtype),
            data.examples("test", dtype),
        )
        self._splits = DatasetSplits(train, val, test)
        self._places = np.zeros(len(envs), dtype=np.int64)
        self.guess = None if self._mixture is None else Guess(*torch.empty(2, len(envs), device=device))
        """Baselines of each env, in the same memory in all rounds; None where all have the same."""
        self.draw(0)

    @property
    def vary(self) -> bool:
        """True if envs draw a task for each episode."""
        return self._mixture is not None

    def assign_envs(self, envs: Tensor) -> None:
        """Draw for other envs from now on: their global indices, int64 [N], in host memory."""
        self._envs = envs

    def draw(self, round_: int) -> None:
        """Draw the envs' tasks of a round; a round has the same whenever it is drawn."""
        if self._mixture is not None:
            self._places = self._mixture.draw(self._seed, self._envs, round_)
            guess = upload(self._mixture.guesses()[:, self._places], self._device)
            for known, now in zip(self.guess or (), guess, strict=True):
                known.copy_(now)

    def splits(self, start: int, stop: int) -> DatasetSplits:
        """The examples of envs `start` to `stop` of these."""
        if self._mixture is None:
            return self._splits
        places = self._places[start:stop]
        return DatasetSplits(*(s.of_envs(places) for s in self._splits if isinstance(s, EnvImages)))
