"""Sums over an episode: each env's rewards by component, and its rollbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import EpisodeFinished

from .columns import shortest
from .transfer import HostFrame

_PREFIX = "reward."


class EpisodeTotals:
    """Sums over the epochs of this round.

    Attributes:
        total_return: float64 [N].
    """

    def __init__(self, envs: int) -> None:
        self.total_return = np.zeros(envs)
        self._rollbacks = np.zeros(envs, dtype=np.int64)
        self._components: dict[str, NDArray[np.float64]] = {}
        """[N] each."""

    def restart(self) -> None:
        """An episode begins."""
        self.total_return[:] = 0.0
        self._rollbacks[:] = 0
        self._components = {}

    def add_epoch(self, frame: HostFrame) -> None:
        """Take in the columns of `outcome_columns`."""
        self.total_return += frame["reward"]
        if "governor.ill" in frame:
            self._rollbacks += frame["governor.ill"] > 0
        for name in frame:
            if name.startswith(_PREFIX):
                key = name.removeprefix(_PREFIX)
                self._components[key] = self._components.get(key, 0.0) + frame[name].astype(np.float64)

    def mean_components(self) -> dict[str, float]:
        """Mean over envs of each."""
        return {name: float(values.mean()) for name, values in self._components.items()}

    def events(
        self,
        outcome: HostFrame,
        test_accuracy: NDArray[np.floating[Any]] | None,
        host_parameters: int,
        seeds: Sequence[dict[str, int]],
    ) -> Iterator[EpisodeFinished]:
        """The `episode.finished` event of each env, in order.

        Args:
            outcome: of the last epoch, `val_accuracy` and `parameters` [N].
            test_accuracy: [N], where it was measured.
            host_parameters: of a host without seeds.
            seeds: of each env by outcome.
        """
        accuracy = shortest(outcome["val_accuracy"])
        for env, total in enumerate(self.total_return.tolist()):
            parameters = int(outcome["parameters"][env])
            yield EpisodeFinished(
                total_return=total,
                reward_components={name: float(values[env]) for name, values in self._components.items()},
                accuracy=accuracy[env],
                test_accuracy=None if test_accuracy is None else float(test_accuracy[env]),
                parameters=parameters,
                added_parameters=parameters - host_parameters,
                seeds=seeds[env],
                rollbacks=int(self._rollbacks[env]),
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "return": self.total_return.tolist(),
            "components": {name: values.tolist() for name, values in self._components.items()},
            "rollbacks": self._rollbacks.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total_return = np.array(state["return"])
        self._components = {name: np.array(values) for name, values in state["components"].items()}
        self._rollbacks = np.array(state["rollbacks"], dtype=np.int64)
