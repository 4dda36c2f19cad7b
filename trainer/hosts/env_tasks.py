"""The task of each env in an episode: the run's, or one that it draws from a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

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
        self._places = torch.zeros_like(envs)
        self.draw(0)

    @property
    def vary(self) -> bool:
        """True if envs draw a task for each episode."""
        return self._mixture is not None

    @property
    def places(self) -> Tensor:
        """int64 [N], what the envs learn, as places in `Mixture.datasets`; in host memory."""
        return self._places

    @property
    def numbers(self) -> Tensor | None:
        """int64 [N], the place of each env's task in the mixture, on the device; None where there is none."""
        if self._mixture is None:
            return None
        return torch.tensor(self._mixture.task_of_dataset)[self._places].to(self._device)

    def assign_envs(self, envs: Tensor) -> None:
        """Draw for other envs from now on: their global indices, int64 [N], in host memory."""
        self._envs = envs

    def draw(self, round_: int) -> None:
        """Draw the envs' tasks of a round; a round has the same whenever it is drawn."""
        if self._mixture is not None:
            self._places = self._mixture.draw(self._seed, self._envs, round_)

    def splits(self, start: int, stop: int) -> DatasetSplits:
        """The examples of envs `start` to `stop` of these."""
        if self._mixture is None:
            return self._splits
        places = self._places[start:stop]
        return DatasetSplits(*(s.of_envs(places) for s in self._splits if isinstance(s, EnvImages)))

    def guess(self) -> Guess | None:
        """Chance-level baselines of each env; None where all envs have the same."""
        if self._mixture is None:
            return None
        chance, loss = (values[self._places] for values in self._mixture.guesses())
        return Guess(chance.to(self._device), loss.to(self._device))
