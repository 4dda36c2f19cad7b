"""Shapley values and interactions: the worth of each seed, and of each two, shared fairly among a host's
seeds.

The worth of a coalition is the validation accuracy of the host with those of its blended seeds and no others.
A seed's value is what it adds to the coalition before it, on average over all orders in which the seeds could
have come (Shapley, "A value for n-person games", 1953); the values of a host sum to the worth of all its
seeds less that of none.

The interaction of seeds i and j of k is the mean of v(C + i + j) - v(C + i) - v(C + j) + v(C), the second
difference of the worth v, over the sizes s of coalitions C of the others and over those of each size: the
Shapley interaction index, with weights s! (k - s - 2)! / (k - 1)! (Grabisch and Roubens, "An axiomatic
approach to the concept of interaction among players in cooperative games", 1999).

Few seeds are done exactly, from all 2^k coalitions, and their interactions with them. For more, orders are
drawn at random and independently, which is unbiased (Castro, Gomez and Tejada, "Polynomial calculation of the
Shapley value based on sampling", 2009); running sums are all that is kept of them. Host-side numpy, at a
round's end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from esper_overwatch.trainer.compute import rng

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Measure = Callable[[Codes, Codes], Floats]
"""(envs [M], bits of the slots left out [M]), no two alike -> accuracies [M]."""

MIN_ORDERS = 4
"""Orders drawn at least; fewer do not show their spread."""
ORDERS_PER_PASS = 4
"""Orders measured in one pass."""
_MAX_SLOTS = 32


def pack(envs: Codes, removed: Codes) -> Codes:
    """Pack coalitions into numbers, each its env and the bits of the slots left out; `unpack` undoes it."""
    return envs << _MAX_SLOTS | removed


def unpack(codes: Codes) -> tuple[Codes, Codes]:
    """Envs and bits of the slots left out, from codes of `pack`."""
    return codes >> _MAX_SLOTS, codes & ((1 << _MAX_SLOTS) - 1)


class MissingCoalition(LookupError):
    """A value was asked of a coalition that was not measured."""


@dataclass(frozen=True)
class ShapleyValues:
    """Shapley values of the seeds of N hosts, in accuracy."""

    value: Floats
    """[N, S]; NaN where no seed is blended."""
    half_width: Floats
    """[N, S], of the value's 95 % confidence interval; 0 where it is exact, NaN where there is none."""
    interaction: Floats
    """[N, S, S], symmetric; NaN where one of the two is not blended, or not all coalitions were measured."""
    coalitions: Codes
    """[N], how many were measured."""


class CoalitionTable:
    """Measured coalitions, looked up many at a time."""

    def __init__(self, envs: Codes, removed: Codes, values: Floats) -> None:
        codes = pack(envs, removed)
        order = np.argsort(codes)
        self._codes, self._values = codes[order], values[order]

    def of(self, envs: Codes, removed: Codes) -> Floats:
        """Look up the worth of coalitions, in the shape of the arguments.

        Raises:
            MissingCoalition: one of them was not measured.
        """
        wanted = pack(envs, removed)
        place = np.searchsorted(self._codes, wanted).clip(max=len(self._codes) - 1)
        missing = self._codes[place] != wanted
        if missing.any():
            at = np.flatnonzero(missing.ravel())[0]
            env, bits = np.broadcast_to(envs, wanted.shape).ravel()[at], removed.ravel()[at]
            slots = [slot for slot in range(_MAX_SLOTS) if bits >> slot & 1]
            raise MissingCoalition(f"env {env} without the seeds of slots {slots} was not measured")
        found: Floats = self._values[place]
        return found


def shapley_values(
    blended: NDArray[np.bool_], measure: Measure, budget: int, key: torch.Tensor
) -> ShapleyValues:
    """Shapley values of all seeds, and interactions of all pairs.

    Args:
        blended: [N, S], where there is a seed.
        measure: worths of coalitions.
        budget: coalitions per env; exact where all of an env's fit, at least `MIN_ORDERS` orders elsewhere.
        key: int64 [N], of the random orders.
    """
    n, slots = blended.shape
    interaction = np.full((n, slots, slots), np.nan)
    value, half_width = np.full(blended.shape, np.nan), np.full(blended.shape, np.nan)
    measured = np.zeros(n, dtype=np.int64)

    def counted(envs: Codes, removed: Codes) -> Floats:
        np.add.at(measured, envs, 1)
        return measure(envs, removed)

    seeds = blended.sum(1)
    for k in np.unique(seeds[seeds > 0]).tolist():
        envs = np.flatnonzero(seeds == k)
        players = np.nonzero(blended[envs])[1].reshape(len(envs), k)
        if 2**k <= budget:
            worths = _worths(envs, players, counted)
            mean, half = worths @ _weights(k).T, np.zeros(players.shape)
            interaction[envs[:, None, None], players[:, :, None], players[:, None]] = _interactions(worths)
        else:
            orders = max(MIN_ORDERS, (budget - 2) // (k - 1))
            mean, half = _sampled(envs, players, counted, orders, key[torch.from_numpy(envs)])
        value[envs[:, None], players], half_width[envs[:, None], players] = mean, half
    return ShapleyValues(value, half_width, interaction, measured)


def _worths(envs: Codes, players: Codes, measure: Measure) -> Floats:
    """[m, 2^k], of all coalitions of the seeds in the slots `players` [m, k]; bit i of a place: i is in."""
    k = players.shape[1]
    present = np.arange(2**k)[:, None] >> np.arange(k) & 1
    removed = np.where(present == 0, 1 << players[:, None, :], 0).sum(2)
    owners = np.repeat(envs, 2**k)
    worths = CoalitionTable(owners, removed.ravel(), measure(owners, removed.ravel()))
    return worths.of(envs[:, None], removed)


def _interactions(worths: Floats) -> Floats:
    """[m, k, k] from the worths [m, 2^k]; NaN on the diagonal."""
    k = worths.shape[1].bit_length() - 1
    cube = worths.reshape(-1, *[2] * k)
    found = np.full((len(worths), k, k), np.nan)
    weights = [math.factorial(s) * math.factorial(k - s - 2) / math.factorial(k - 1) for s in range(k - 1)]
    weight = np.array([weights[others.bit_count()] for others in range(2**k // 4)])
    for i, j in combinations(range(k), 2):
        second = np.diff(np.diff(cube, axis=k - i), axis=k - j).reshape(len(worths), -1)
        found[:, i, j] = found[:, j, i] = second @ weight
    return found


@lru_cache
def _weights(k: int) -> Floats:
    """[k, 2^k]: how much the worth of each coalition counts for each player."""
    weights = np.zeros((k, 2**k))
    for coalition in range(2**k):
        size = coalition.bit_count()
        for player in range(k):
            if coalition >> player & 1:
                weight = math.factorial(size - 1) * math.factorial(k - size)
            else:
                weight = -math.factorial(size) * math.factorial(k - size - 1)
            weights[player, coalition] = weight / math.factorial(k)
    return weights


def _sampled(
    envs: Codes, players: Codes, measure: Measure, orders: int, key: torch.Tensor
) -> tuple[Floats, Floats]:
    """Mean and half width [m, k] over `orders` random orders; running sums by Welford's method."""
    from scipy.special import stdtrit  # takes a quarter of a second to import, and few runs need it

    everything = (1 << players).sum(1)
    ends = envs.repeat(2), np.stack([np.zeros_like(everything), everything], 1).ravel()
    end_values = measure(*ends)
    mean, m2 = np.zeros(players.shape), np.zeros(players.shape)
    rows = np.arange(len(envs))
    for count, place in enumerate(_marginals_of(envs, players, measure, orders, key, ends, end_values), 1):
        who, gained = place
        added = np.empty_like(mean)
        added[rows[:, None], who] = gained
        delta = added - mean
        mean += delta / count
        m2 += delta * (added - mean)
    return mean, stdtrit(orders - 1, 0.975) * np.sqrt(m2 / (orders - 1) / orders)


def _marginals_of(
    envs: Codes,
    players: Codes,
    measure: Measure,
    orders: int,
    key: torch.Tensor,
    ends: tuple[Codes, Codes],
    end_values: Floats,
) -> Iterator[tuple[Codes, Floats]]:
    """For each order, who came when [m, k] and what each added [m, k]; measures `ORDERS_PER_PASS` at once."""
    k = players.shape[1]
    for start in range(0, orders, ORDERS_PER_PASS):
        number = torch.arange(start, min(start + ORDERS_PER_PASS, orders))
        came = rng.permutation(rng.fold(key.unsqueeze(1), number), k).numpy()
        bits = 1 << np.take_along_axis(players[:, None, :].repeat(came.shape[1], 1), came, 2)
        left = bits.sum(2, keepdims=True) - np.cumsum(np.insert(bits, 0, 0, axis=2), axis=2)
        owners = np.broadcast_to(envs[:, None, None], left.shape)
        inner = np.unique(pack(owners, left)[..., 1:-1])
        found = unpack(inner)
        worths = CoalitionTable(
            np.append(ends[0], found[0]),
            np.append(ends[1], found[1]),
            np.append(end_values, measure(*found)),
        )
        gained = np.diff(worths.of(owners, left), axis=2)
        yield from zip(came.swapaxes(0, 1), gained.swapaxes(0, 1), strict=True)
