"""A contextual bandit: what to plant in a host, by what it has shown, without a task's label.

The returns are a Gaussian process over pairs of a context and a schedule (Krause and Ong, "Contextual
Gaussian process bandit optimization", 2011): the covariance of two is the one that `schedule_values` has of
the two schedules, half of it for all contexts and half as far as the contexts are near each other. While it
learns, each host follows the schedule that is best in a draw from the posterior (Thompson sampling: Russo et
al., "A tutorial on Thompson sampling", 2018, arXiv:1707.02038); afterwards the one with the highest mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from esper_overwatch.trainer.compare.schedule_values import NOISE_DEVIATION, prior_covariance
from esper_overwatch.trainer.compute import rng

from .searches import Records

LENGTHS = (0.25, 0.5, 1.0)
"""Distances at which the likeness of contexts has fallen to 1/e, where 1 is that of two contexts in the mean;
the one that explains the returns best is taken after every round."""
JITTER = 1e-9
"""Added to variances that rounding can make negative."""


class Bandit:
    """See the module; a `searches.Searcher`.

    Args:
        schedule_KS: int64, by schedule and slot what it plants.
        seed: of the draws.
    """

    def __init__(self, schedule_KS: Tensor, seed: int) -> None:
        self._prior_KK, self._seed = prior_covariance(schedule_KS), seed
        self._found: Records | None = None

    def choose(self, hosts: range, context_NF: Tensor) -> Tensor:
        key = rng.key(self._seed, rng.Purpose.ACTION, torch.tensor(hosts.start))
        generator = torch.Generator().manual_seed(int(key))
        chosen = []
        for mean_K, covariance_KK in self._posteriors(context_NF):
            even_K = torch.randn(len(mean_K), generator=generator, dtype=torch.float64)
            root_KK = torch.linalg.cholesky(covariance_KK + JITTER * torch.eye(len(mean_K)))
            chosen.append(int((mean_K + root_KK @ even_K).argmax()))
        return torch.tensor(chosen, dtype=torch.int64)

    def observe(self, hosts: range, found: Records) -> None:  # noqa: ARG002
        if self._found is not None:
            found = {name: torch.cat([self._found[name], found[name]]) for name in found}
        self._found = found
        context_nF = _compressed(found["context"])
        self._centre_F, self._spread_F = context_nF.mean(0), context_nF.std(0, correction=0) + JITTER
        chosen_n, noise_nn = found["chosen"], NOISE_DEVIATION**2 * torch.eye(len(context_nF))
        distance_nn = self._distance(found["context"])
        best = -torch.inf
        for length in LENGTHS:
            alike_nn = _likeness(distance_nn, length) * self._prior_KK[chosen_n][:, chosen_n]
            root_nn = torch.linalg.cholesky(alike_nn + noise_nn)
            weight_n = torch.cholesky_solve(found["paid"].unsqueeze(1), root_nn).squeeze(1)
            evidence = float(-found["paid"] @ weight_n / 2 - root_nn.diagonal().log().sum())
            if evidence > best:
                best, self._length, self._root_nn, self._weight_n = evidence, length, root_nn, weight_n

    def best(self, context_NF: Tensor) -> Tensor:
        """int64 [N]: for each host the schedule with the highest mean."""
        return torch.stack([mean_K.argmax() for mean_K, _ in self._posteriors(context_NF)])

    def _posteriors(self, context_NF: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each host mean [K] and covariance [K, K] of what the schedules are worth in it."""
        for row in range(len(context_NF)):
            if self._found is None:
                yield torch.zeros(len(self._prior_KK), dtype=torch.float64), self._prior_KK
                continue
            near_n = _likeness(self._distance(context_NF[row : row + 1]).squeeze(0), self._length)
            shared_nK = near_n.unsqueeze(1) * self._prior_KK[self._found["chosen"]]
            known_nK = torch.linalg.solve_triangular(self._root_nn, shared_nK, upper=False)
            yield shared_nK.T @ self._weight_n, self._prior_KK - known_nK.T @ known_nK

    def _distance(self, context_NF: Tensor) -> Tensor:
        """[N, n], squared, to the contexts so far; 1 is the mean of two that have nothing in common."""
        assert self._found is not None
        here_NF, there_nF = (
            (_compressed(context) - self._centre_F) / self._spread_F
            for context in (context_NF, self._found["context"])
        )
        return torch.cdist(here_NF, there_nF).square() / (2 * max(1, here_NF.shape[1]))


def _compressed(context: Tensor) -> Tensor:
    """Keep a loss that has run away from being all that counts."""
    wide = context.double()
    return wide.sign() * wide.abs().log1p()


def _likeness(distance: Tensor, length: float) -> Tensor:
    return (1.0 + (-distance / length**2).exp()) / 2
