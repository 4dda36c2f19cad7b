"""The tasks of the preset `mixture` want different networks: no constant schedule is best for all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.evaluation.episodes import HeldOutEpisodes
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts

torch.set_num_threads(1)
SCHEDULES = {
    "none": ("none", "none", "none"),
    "0": ("depthwise", "none", "none"),
    "1": ("none", "depthwise", "none"),
    "2": ("none", "none", "depthwise"),
    "01": ("depthwise", "depthwise", "none"),
    "attention in 0": ("attention", "none", "none"),
}
"""By name, what is planted in each slot."""
HOSTS_PER_TASK = 3


@pytest.mark.nightly
def test_best_constant_schedule_differs_from_task_to_task() -> None:
    sets = ["envs.group_size=15", "envs.convolution=grouped", "envs.threads=1", "device=cpu"]
    cfg = load(preset="mixture", sets=sets)
    cpu, names = torch.device("cpu"), cfg.task.mixture
    held_out = HeldOutHosts(seed=1, count=HOSTS_PER_TASK * len(names))
    hosts = HeldOutEpisodes(cfg, held_out.load(cfg.task, cpu), held_out, cpu)
    found = {}
    for schedule, plants in SCHEDULES.items():
        table = hosts.play(FrozenPolicy.constant(*plants))
        found[schedule] = {name: float(table.of_task(name).episode_return.mean()) for name in names}
    hosts.close()
    worth = {schedule: np.mean(list(by_task.values())) for schedule, by_task in found.items()}
    best = {name: max(found, key=lambda schedule: found[schedule][name]) for name in names}
    report = "\n".join(f"{schedule:14} {by_task}" for schedule, by_task in found.items())
    print(report, worth, best)
    assert best["histogram"] == "none", report
    assert "0" in best["texture"], report
    assert best["quadrants"] in ("1", "2"), report
    assert all(best[name] != "none" for name in names if name != "histogram"), report
    chosen = np.mean([found[best[name]][name] for name in names])
    assert chosen > max(worth.values()) + 0.02, report
