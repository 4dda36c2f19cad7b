"""Which contributions an epoch measures, where all of them would cost more than they may.

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
