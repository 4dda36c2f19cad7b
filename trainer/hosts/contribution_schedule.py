"""Choice of the contributions and pair interactions to measure in an epoch, where all would cost too much.

Decided by counted work and by how long ago each was measured, never by a clock: a run repeats itself, and one
that is resumed goes on as if it had not stopped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def select_contributions(
    blended: NDArray[np.bool_], age: NDArray[np.int64], budget: float
) -> NDArray[np.bool_]:
    """Whose contribution to measure: the stalest first, for as long as the budget lasts, but at least one.

    A pass over N hosts with S slots counts as N * (S + 1) blocks, the head being one. A host without the seed
    of slot s goes its own way through the S - s blocks behind it.

    Args:
        blended: [N, S], seeds that contribute.
        age: [N, S], epochs since each was measured; negative = never, which is stalest of all.
        budget: of further blocks, relative to the pass without.

    Returns:
        [N, S].
    """
    n, slots = blended.shape
    envs, places = np.nonzero(blended)
    staleness = np.where(age[envs, places] < 0, np.iinfo(np.int64).max, age[envs, places])
    order = np.argsort(-staleness, kind="stable")
    work = np.cumsum((slots - places)[order])
    within = work <= budget * n * (slots + 1)
    within[:1] = True
    chosen = np.zeros_like(blended)
    chosen[envs[order][within], places[order][within]] = True
    return chosen


def select_pairs(measured: NDArray[np.bool_], epoch: int, budget: float) -> NDArray[np.bool_]:
    """Whose interactions to measure with what the contributions leave of the budget; the pairs take turns.

    A host without two seeds shares its way with that without the first of them up to the second one's slot s,
    and goes its own way through the S - s blocks behind it.

    Args:
        measured: [N, S], seeds whose contributions the epoch measures; both of a pair must be among them.
        epoch: whose turn it is.
        budget: as for `select_contributions`.

    Returns:
        [N, S, S], true above the diagonal only.
    """
    n, slots = measured.shape
    left = budget * n * (slots + 1) - (slots - np.nonzero(measured)[1]).sum()
    candidates = np.triu(measured[:, :, None] & measured[:, None, :], k=1)
    envs, first, second = np.nonzero(candidates)
    counts = candidates.sum((1, 2))
    rank = np.arange(len(envs)) - (np.cumsum(counts) - counts)[envs]
    order = np.argsort((rank - epoch) % counts[envs], kind="stable")
    within = order[np.cumsum((slots - second)[order]) <= left]
    chosen = np.zeros_like(candidates)
    chosen[envs[within], first[within], second[within]] = True
    return chosen
