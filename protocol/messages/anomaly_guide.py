"""One table of anomalies: meaning, usual causes and what to try.

The terminal's detail, `esper-daemon doctor` and docs/reference/anomalies.md show it. Options and commands
stand between backticks.
"""

from __future__ import annotations

from typing import NamedTuple


class AnomalyGuide(NamedTuple):
    """One kind."""

    title: str
    """In a few words."""
    meaning: str
    causes: tuple[str, ...]
    """The most usual first."""
    steps: tuple[str, ...]
    """Remedies, the cheapest first."""


ROLLBACK = "rollback"
"""Kind of rollbacks that are too many, of one env or of many envs at once; a single one raises nothing."""

ANOMALY_GUIDES: dict[str, AnomalyGuide] = {
    "loss_nonfinite": AnomalyGuide(
        "loss not finite",
        "A host's training or validation loss is NaN or infinite.",
        (
            "the host's learning rate is too high",
            "fp16 overflowed",
            "a seed was blended in with huge outputs",
        ),
        (
            "see whether the governor has rolled the env back: then it goes on by itself",
            "lower `host.learning_rate`, or set `host.max_grad_norm`",
            "use `amp.dtype=bf16` instead of fp16",
        ),
    ),
    "gradient_nonfinite": AnomalyGuide(
        "gradient not finite",
        "The gradient of a host or a seed is NaN or infinite.",
        ("the loss was not finite first", "fp16 overflowed", "a layer divides by something near 0"),
        (
            "escalate the env (`esper-daemon escalate`, key T): its layers show where it begins",
            "lower `host.learning_rate`, or `seeds.learning_rate` for a seed",
            "use `amp.dtype=bf16`",
        ),
    ),
    "gradient_exploding": AnomalyGuide(
        "exploding gradients",
        "The gradient norm, before clipping, of a host, a seed or the policy is far above what trains well.",
        (
            "the learning rate is too high",
            "a seed has just begun to blend",
            "the rewards are of a large scale",
        ),
        (
            "host: lower `host.learning_rate`, or set `host.max_grad_norm`",
            "seed: lower `seeds.learning_rate` or `seeds.max_grad_norm`",
            "policy: lower `ppo.learning_rate`; `ppo.max_grad_norm` clips each step",
        ),
    ),
    "gradient_vanishing": AnomalyGuide(
        "dead gradients",
        "Hardly any gradient arrives at a host or a seed: it does not learn.",
        ("its units are dead", "a blend near 0 lets nothing through", "the loss is already near 0"),
        (
            "escalate the env (key T) and look for layers with a large share of dead units",
            "wait, where the seed is still blending",
            "raise `host.learning_rate`, or leave the blueprint out of `seeds.blueprints`",
        ),
    ),
    "gradient_health": AnomalyGuide(
        "unhealthy gradients",
        "Only a small share of the tensors of a host or a seed has a usable gradient.",
        ("units died after steps that were too large", "the seed's blueprint does not fit this host"),
        (
            "escalate the env (key T): the layers show which tensors",
            "lower `host.learning_rate` or `seeds.learning_rate`",
            "raise `gates.min_health`, so that such seeds are not blended in",
        ),
    ),
    "norm_drift": AnomalyGuide(
        "gradient norm drifts",
        "A gradient norm has left its running average, by more than is usual for its kind of source.",
        (
            "a seed germinated, or its blend changed",
            "the data or the learning rate changed",
            "training diverges",
        ),
        (
            "see whether a seed of the env changed its stage at that time: then it mostly passes",
            "escalate the env (key T) and look at its layers",
            "where it is told too often, raise `drift.unusual_factor` or `anomalies.norm_drift`",
        ),
    ),
    "health_drift": AnomalyGuide(
        "gradient health falls",
        "The share of tensors with a usable gradient has left its running average.",
        ("layers are dying", "a seed was added or pruned"),
        (
            "escalate the env (key T) and look at dead shares by layer",
            "lower `host.learning_rate`",
            "where it is told too often, raise `drift.unusual_factor` or `anomalies.health_drift`",
        ),
    ),
    "stalled": AnomalyGuide(
        "accuracy does not rise",
        "A host's validation accuracy has not become better for many epochs of this episode; or a metric "
        "that a loop has asked to `watch` not for as many steps as it said.",
        (
            "what is trained has learnt what it can at its size",
            "the learning rate is too low, or its schedule has ended",
            "the policy does not grow a seed where one is needed",
        ),
        (
            "a loop of one's own: change its learning rate, or stop it",
            "look at the env (Enter): is a seed blending, and do its gates pass?",
            "raise `host.learning_rate`, or shorten the episodes",
            "raise `anomalies.stalled_epochs` where episodes are long",
        ),
    ),
    "degraded": AnomalyGuide(
        "accuracy lost",
        "A host's validation accuracy has fallen far below the best of this episode.",
        ("a seed that is blended in does harm", "training diverges", "few validation images make it noisy"),
        (
            "look at the env (Enter): which seed blends, and is its contribution negative?",
            "lower `host.learning_rate`",
            "set `seeds.gates=strict` and raise `gates.min_contribution`: seeds must help before they stay",
        ),
    ),
    "fp16_overflow": AnomalyGuide(
        "fp16 overflows",
        "A large share of an env's steps overflowed fp16 and was skipped.",
        ("the loss scale is still being found, in the first epochs", "gradients are too large for fp16"),
        ("wait for the first epochs to pass", "use `amp.dtype=bf16`", "lower `host.learning_rate`"),
    ),
    "reward_hacking": AnomalyGuide(
        "credit beyond gain",
        "A seed is credited with many times what its env has gained: the reward may pay for nothing.",
        (
            "the host has come to depend on the seed without becoming better",
            "contributions are measured on few validation images",
        ),
        (
            "compare contribution and accuracy in the env's detail (Enter)",
            "lower `reward.contribution`",
            "raise `validation.calibration_batches`: contributions are measured more exactly",
        ),
    ),
    "nonfinite": AnomalyGuide(
        "not finite",
        "A number that a loop logs, or a loss, the gradient, the KL divergence or the recurrent state of the "
        "policy, is NaN or infinite. Of a loop it is over with three finite values.",
        ("the learning rate is too high", "fp16 overflowed", "a reward or a sample was not finite"),
        (
            "a loop of one's own: lower its learning rate, clip its gradients, see the batch of that step",
            "resume from a checkpoint from before it: `esper-daemon start --resume`",
            "lower `ppo.learning_rate` or `ppo.max_grad_norm`",
        ),
    ),
    "kl_spike": AnomalyGuide(
        "policy moves too far",
        "An update moved the policy further than meant: its KL divergence is a multiple of the target.",
        ("the policy's learning rate is too high", "too many passes over few samples"),
        ("lower `ppo.learning_rate`", "lower `ppo.epochs`", "check that `ppo.target_kl` is not 0"),
    ),
    "clip_fraction": AnomalyGuide(
        "many samples clipped",
        "A large share of the samples of an update was clipped: much of it was in vain.",
        ("the policy's learning rate is too high", "too many passes over few samples"),
        ("lower `ppo.learning_rate`", "lower `ppo.epochs`", "more samples per update: raise `envs.count`"),
    ),
    "ratio_explosion": AnomalyGuide(
        "probability ratio exploded",
        "An action became many times as probable within one update.",
        ("the policy's learning rate is too high", "an action that was very improbable was taken and paid"),
        ("lower `ppo.learning_rate` or `ppo.epochs`",),
    ),
    "ratio_collapse": AnomalyGuide(
        "probability ratio collapsed",
        "An action that was taken lost nearly all of its probability within one update.",
        ("the policy's learning rate is too high", "one very bad return outweighs the rest"),
        ("lower `ppo.learning_rate` or `ppo.epochs`", "lower `ppo.target_kl`"),
    ),
    "entropy_collapse": AnomalyGuide(
        "policy stopped exploring",
        "The policy, or one of its heads, has nearly stopped exploring: it nearly always does the same.",
        (
            "it has learnt what pays, late in a run",
            "the entropy bonus is too low",
            "it has seized on a local optimum",
        ),
        (
            "late in a run with good returns: nothing",
            "raise `ppo.entropy_coefficient`, after `ppo.entropy_rounds` `ppo.entropy_final` "
            "(both also by `esper-daemon param`)",
        ),
    ),
    "value_collapse": AnomalyGuide(
        "critic explains too little",
        "The critic explains less of the returns than it should by this point of the run.",
        (
            "rewards were changed while the run trained",
            "returns differ little",
            "the critic learns too slowly",
        ),
        (
            "after a change of rewards: wait some rounds",
            "raise `ppo.value_coefficient`",
        ),
    ),
    "value_error": AnomalyGuide(
        "critic's error too large",
        "The critic's error is a multiple of the spread of the returns: their mean would do better.",
        ("the critic has not learnt the scale of the returns yet", "the rewards were changed"),
        ("wait some rounds", "raise `ppo.value_coefficient`"),
    ),
    "low_return_variance": AnomalyGuide(
        "all returns equal",
        "All returns of a round are equal: there is nothing to learn from.",
        ("all envs do the same, since the policy is certain", "the weights of the reward are 0"),
        ("raise `ppo.entropy_coefficient`", "check `reward.mode` and its weights", "raise `envs.count`"),
    ),
    "return_divergence": AnomalyGuide(
        "returns contradict accuracy",
        "The return no longer tells which networks are good: over the newest episodes it hardly correlates "
        "with the accuracy on the test images less the rent.",
        (
            "the reward pays for something else than what is reported: fossilising for itself, contributions",
            "penalties for rollbacks outweigh what the networks differ by",
            "the validation images no longer tell what the test images do",
        ),
        (
            "see what the return consists of: `esper-daemon query RUN 'SELECT * FROM returns'`",
            "use `reward.mode=shaped` or `reward.mode=sparse`, whose returns are the accuracy less the rent",
            "lower the weights of the components that do not follow the accuracy",
        ),
    ),
    "lstm_saturated": AnomalyGuide(
        "recurrent state saturated",
        "The policy's recurrent state is so large that it hardly changes any more.",
        ("the policy's learning rate is too high", "episodes are very long"),
        ("lower `ppo.learning_rate`", "resume from a checkpoint from before it"),
    ),
    "lstm_dead": AnomalyGuide(
        "recurrent state dead",
        "The policy's recurrent state is next to 0: it remembers nothing.",
        ("its gates have closed after steps that were too large",),
        ("lower `ppo.learning_rate`", "resume from a checkpoint from before it"),
    ),
    "slow_update": AnomalyGuide(
        "slow updates",
        "A step of the PPO update takes a multiple of its usual time.",
        ("another process uses the machine", "the processor or the GPU is throttled", "memory is swapped"),
        ("look at the view Machine (5)", "record a profile (key P)"),
    ),
    "slow_epochs": AnomalyGuide(
        "slow epochs",
        "Epochs take a multiple of their usual time.",
        ("another process uses the machine", "more seeds live than before", "memory is swapped"),
        ("look at the view Machine (5)", "record a profile (key P)", "limit the seeds: `seeds.max_live`"),
    ),
    "memory": AnomalyGuide(
        "memory nearly full",
        "The machine's or the GPU's memory is nearly full: the kernel may kill the run.",
        ("too many envs or seeds for this machine", "another process"),
        (
            "save a checkpoint now (key C): a killed run is resumed from it",
            "lower `envs.count` or `envs.group_size`, or limit `seeds.max_live`",
            "end what else takes memory",
        ),
    ),
    "queue_drops": AnomalyGuide(
        "telemetry refused",
        "Telemetry was refused, since too much came at once: some metrics are missing in the journal.",
        ("the disk is slow", "level DEBUG of many envs"),
        ("lower `telemetry.level`", "raise `telemetry.stride`", "put the runs on a faster disk"),
    ),
    "share": AnomalyGuide(
        "telemetry takes too long",
        "Telemetry takes more of an epoch's time than meant, 5 ms of each not counted.",
        ("level DEBUG of many envs", "very short epochs"),
        ("lower `telemetry.level`", "raise `telemetry.stride`"),
    ),
    "journal_write": AnomalyGuide(
        "journal cannot be written",
        "The disk refuses the journal: events wait in memory, and are lost when that is full.",
        ("the disk has become read-only", "it fails", "a server that it is on is gone"),
        ("see the kernel's messages: `dmesg`", "check that the disk can be written to"),
    ),
    ROLLBACK: AnomalyGuide(
        "hosts put back",
        "The governor puts hosts back to a good epoch again and again, or many of them at once: their losses "
        "diverge, or they forget what they knew.",
        ("the host's learning rate is too high", "a seed that was blended in does harm"),
        (
            "lower `host.learning_rate`, or set `host.max_grad_norm`",
            "one env alone: look at its seeds (Enter); its next episode begins with a fresh host",
            "healthy hosts are put back: raise `governor.divergence_sigmas`",
        ),
    ),
    "disk_full": AnomalyGuide(
        "disk full",
        "The disk has no room for the journal: events wait in memory, and are lost when that is full.",
        ("the disk is full", "a quota is used up"),
        ("free space on the disk that holds the run", "limit the journals: `journal.keep_bytes`"),
    ),
    "disk": AnomalyGuide(
        "disk fills up",
        "The disk that holds the run is filling up: less than 200 MiB and a checkpoint are free, or what the "
        "next hour takes at the rate of the last minutes. It is critical below 50 MiB.",
        ("checkpoints or videos that nobody deletes", "another process"),
        (
            "free space on the disk that holds the run",
            "keep fewer checkpoints: `checkpoint.keep`",
            "limit the journals: `journal.keep_bytes`",
        ),
    ),
    "silent": AnomalyGuide(
        "silent",
        "The trainer, or a loop that publishes, has shown no sign of life for five times its usual interval, "
        "at least 5 s, and longer than ever before. It is critical at four times that, from a minute on. "
        "A trainer shows one each epoch, a loop with all that it logs.",
        (
            "it hangs: a data loader, another process or a network that it waits for",
            "it does something that it does seldom: it validates, saves or compiles",
            "the machine swaps, or others keep it busy",
        ),
        (
            "see what it waits for: `esper-daemon stacks`, which shows each thread's functions",
            "look at the view Machine (5)",
            "end it, and go on from its newest checkpoint",
        ),
    ),
    "slow_steps": AnomalyGuide(
        "slow steps",
        "Three steps in a row of a loop that publishes took five times as long as is usual for it.",
        ("another process uses the machine", "the data comes slowly", "memory is swapped"),
        (
            "look at the view Machine (5)",
            "see whether the loop does more than before at each step: `esper-daemon stacks`",
        ),
    ),
}
"""By kind, as in `anomaly` events."""


def title_of(kind: str) -> str:
    """A kind in a few words; of one that is not known its name without underscores."""
    guide = ANOMALY_GUIDES.get(kind)
    return guide.title if guide is not None else kind.replace("_", " ")


def advice(kind: str, undo: str) -> list[str]:
    """Steps to try for an incident, the cheapest first.

    Args:
        kind: of its worst signal.
        undo: the command that takes its suspect back; empty = none. What the guide says of the same parameter
            is left out: it is meant for a run in which nobody has changed it.
    """
    guide = ANOMALY_GUIDES.get(kind)
    steps = list(guide.steps) if guide is not None else []
    if not undo:
        return steps
    key = next((word.removeprefix("key=") for word in undo.split() if word.startswith("key=")), "")
    kept = (step for step in steps if not key or f"`{key}`" not in step)
    return [f"undo what came before: `{undo}`", *kept]
