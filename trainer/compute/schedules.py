"""Courses of learning rates: which share of a rate is in force at which step of how many."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def schedule_share(schedule: Schedule, *, warmup: int, total: int, done: int) -> float:
    """The share of a learning rate at one step: 1 where there is neither schedule nor warm-up.

    Over the first `warmup` steps it grows linearly from 1 / (warmup + 1) to 1, then it follows the schedule
    to 0 after the last step. The cosine is that of Loshchilov and Hutter, "SGDR" (2017), without restarts.
    In torch.optim.lr_scheduler it is `LinearLR(start_factor=1 / (warmup + 1), total_iters=warmup)`, followed
    by `LinearLR(1, 0, total - warmup)` or `CosineAnnealingLR(total - warmup)`.

    Args:
        warmup: steps, fewer than `total` unless the schedule is constant.
        total: steps; read by schedules that decay only.
        done: steps finished before.
    """
    if done < warmup:
        return (done + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    share = min(1.0, (done - warmup) / (total - warmup))
    return 1.0 - share if schedule == "linear" else (1.0 + math.cos(math.pi * share)) / 2.0
