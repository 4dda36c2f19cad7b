"""Options of what counts as unusual: how gradients' averages follow, and the limits of anomalies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, defstruct, to_builtins

from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold, with_limits

from .section import Section, count, number

SIGNALS = {
    "norm_drift": "Drift of a gradient's norm",
    "health_drift": "Drift of a gradient's health",
    "gradient_health": "Share of a host's tensors with a usable gradient",
    "gradient_exploding": "Gradient norm of a host",
    "seed_exploding": "Gradient norm of a seed, unclipped",
    "seed_health": "Share of a seed's tensors with a usable gradient",
    "gradient_vanishing": "Gradient norm of a host",
    "seed_vanishing": "Gradient norm of a seed",
    "nonfinite": "Count of values of the policy that are NaN or infinite",
    "host_nonfinite": "Count of values of a host or a seed that are NaN or infinite",
    "lstm_rms": "Root mean square of the policy's recurrent state",
    "lstm_rms_low": "Root mean square of the policy's recurrent state",
    "clip_fraction": "Share of clipped samples in a PPO update",
    "entropy": "Entropy of policy and heads, as a share of the largest",
    "value_nrmse": "Error of the critic, in deviations of the returns",
    "return_std": "Standard deviation of the returns",
    "return_agreement": "Correlation of returns with test accuracy less rent, over the newest episodes",
    "ratio_explosion": "Largest probability ratio of a PPO update",
    "ratio_collapse": "Smallest probability ratio of a PPO update",
    "total_grad_norm": "Gradient norm of the policy, unclipped",
    "memory": "Share of the machine's or the GPU's memory in use",
    "update_pace": "Time of a PPO step, as a multiple of the usual one",
    "skipped_steps": "Share of an epoch's steps that overflow fp16",
    "telemetry_share": "Share of an epoch's time that telemetry takes beyond 5 ms",
    "stalled_epochs": "Epochs of a host without a better accuracy",
    "accuracy_lost": "Accuracy that a host has lost since the episode's best",
    "credit": "Contribution of a seed, as a multiple of its host's gain",
    "pace": "Time of an epoch, as a multiple of the usual one",
    "queue_drops": "Count of events that were refused in an epoch",
    "rollbacks": "Count of rollbacks of an env in an episode",
    "rollback_share": "Share of the envs that were put back at once, within three epochs",
}
"""Checks whose limits stay the same all through a run: those of `kl` follow `ppo.target_kl`, those of
`value_collapse` the run's progress."""

RaiseAfter = Annotated[
    int,
    count(
        "Readings in a row beyond a limit that raise an anomaly; 0 = as the signal's own row says; "
        "values that are not finite never wait",
        ge=0,
    ),
]
ClearAfter = Annotated[
    int, count("Calm readings in a row that clear an anomaly; 0 = as the signal's own row says", ge=0)
]
ClearMargin = Annotated[
    float,
    number(
        "Distance from the limit, as a share of it, of calm readings; 0 = as the signal's own row says",
        le=0.9,
    ),
]
WAITING: tuple[tuple[str, Any, float], ...] = (
    ("raise_after", RaiseAfter, 0),
    ("clear_after", ClearAfter, 0),
    ("clear_margin", ClearMargin, 0.0),
)
"""Name, type and default of what is the same for all signals, where it is set."""
Limit = Annotated[float, Meta(ge=0.0, le=1e9)]


def momentum(of: str) -> Meta:
    return number(f"Momentum of the running averages of gradient norm and health of {of}", le=0.99999)


def warmup(of: str, samples: str) -> Meta:
    return count(f"Samples ({samples}) before the running average of {of} is trusted")


class DriftConfig(Section, frozen=True):
    host_momentum: Annotated[float, momentum("hosts")] = 0.99
    host_warmup: Annotated[int, warmup("a host", "epochs, over all episodes")] = 20
    seed_momentum: Annotated[float, momentum("seeds")] = 0.9
    seed_warmup: Annotated[int, warmup("a seed", "epochs of its life")] = 5
    policy_momentum: Annotated[float, momentum("policy, heads and critic")] = 0.95
    policy_warmup: Annotated[int, warmup("policy, heads and critic", "updates")] = 20
    usual_momentum: Annotated[
        float, number("Momentum of the average drift that is usual for a kind of sources", le=0.99999)
    ] = 0.99
    usual_warmup: Annotated[
        int, count("Samples before the usual drift is known; until then no drift raises an anomaly")
    ] = 10
    unusual_factor: Annotated[
        float,
        number(
            "Multiple of the usual drift below which drift is not noted, whatever anomalies.norm_drift "
            "and anomalies.health_drift say",
            le=1e6,
        ),
    ] = 8.0


def _limits(threshold: Threshold) -> Meta:
    side = "below" if threshold.low else "above"
    first = "noted" if threshold.is_note else "a warning"
    return Meta(
        min_length=1,
        max_length=2,
        description=f"{SIGNALS[threshold.signal]}: values {side} which it is {first}, and critical",
    )


if TYPE_CHECKING:

    class AnomaliesConfig(Section, frozen=True):
        """For each of `SIGNALS` one or two limits; the table of thresholds has the defaults."""

        raise_after: int = 0
        clear_after: int = 0
        clear_margin: float = 0.0
else:
    AnomaliesConfig = defstruct(
        "AnomaliesConfig",
        [
            (
                t.signal,
                Annotated[tuple[Limit, ...], _limits(t)],
                (t.warning,) if t.critical is None else (t.warning, t.critical),
            )
            for t in (THRESHOLDS[signal] for signal in SIGNALS)
        ]
        + list(WAITING),
        bases=(Section,),
        namespace={"__module__": __name__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def configured_thresholds(anomalies: AnomaliesConfig) -> dict[str, Threshold]:
    """The table of thresholds with the limits of a run, and how long its anomalies wait."""
    values = to_builtins(anomalies)
    table = with_limits({signal: values[signal] for signal in SIGNALS})
    own = {signal: _with_waiting(table[signal], anomalies) for signal in (*SIGNALS, "kl")}
    return {**table, **own}


def _with_waiting(threshold: Threshold, anomalies: AnomaliesConfig) -> Threshold:
    """Replace how long a threshold waits, where the run's options set it.

    A NaN is no noise that a second reading could take back: it is raised at once.
    """
    margin = anomalies.clear_margin
    raise_after = 0 if threshold.signal.endswith("nonfinite") else anomalies.raise_after
    return replace(
        threshold,
        raise_after=raise_after or threshold.raise_after,
        clear_after=anomalies.clear_after or threshold.clear_after,
        clear_ratio=(1.0 + margin if threshold.low else 1.0 - margin) if margin else threshold.clear_ratio,
    )
