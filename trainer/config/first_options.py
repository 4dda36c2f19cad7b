"""The options that matter first, by what they are about; `esper-daemon options` lists them."""

from __future__ import annotations

FIRST_OPTIONS: dict[str, tuple[str, ...]] = {
    "the run": ("seed", "rounds", "device", "episode_epochs"),
    "what is learned": (
        "task.dataset",
        "task.mixture",
        "task.data_dir",
        "task.batch_size",
        "task.batches_per_epoch",
    ),
    "hosts": ("host.family", "host.channels", "host.learning_rate", "envs.count", "envs.copies"),
    "growth": ("seeds.blueprints", "seeds.gates", "reward.mode", "reward.rent"),
    "PPO": (
        "policy.kind",
        "policy.decision_epochs",
        "ppo.learning_rate",
        "ppo.entropy_coefficient",
        "ppo.minibatches",
        "evaluation.rounds",
    ),
    "what is told and kept": (
        "telemetry.level",
        "checkpoint.every_seconds",
        "checkpoint.keep",
        "metrics.listen",
    ),
}
"""Keys by heading; thirty at most, so that they fit on a screen or two."""
