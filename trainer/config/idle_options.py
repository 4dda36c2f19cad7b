"""Options that have an effect only where another option is set: given without it, they are idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import fields

from .policy_options import PAYING_MODES, PPOConfig
from .schema import Config


@dataclass(frozen=True)
class Need:
    """A condition under which some options have an effect.

    Attributes:
        switch: the option that decides.
        is_met: whether its value gives the others their effect.
        words: when that is so, for messages.
        options: the others.
    """

    switch: str
    is_met: Callable[[Any], bool]
    words: str
    options: tuple[str, ...]


FOR_RULES_AS_WELL = frozenset({"gamma", "minibatches"})
"""Options of PPO that every policy uses: one shapes its reward; the other has to go with envs.count, so that
those who compare policies give it with each."""


def _of_ppo(unless: frozenset[str]) -> tuple[str, ...]:
    return tuple(f"ppo.{option.name}" for option in fields(PPOConfig) if option.name not in unless)


def _modes_that_pay(weight: str) -> Need:
    modes = PAYING_MODES[weight].split()
    last = modes.pop()
    words = f"{', '.join(modes)} or {last}" if modes else last
    return Need(
        "reward.mode",
        lambda mode: mode in (*modes, last),
        f"reward.mode = {words}",
        (f"reward.{weight}",),
    )


NEEDS = (
    Need(
        "policy.kind",
        lambda kind: kind == "ppo",
        "policy.kind = ppo",
        (*_of_ppo(FOR_RULES_AS_WELL), "policy.decision_epochs"),
    ),
    Need("policy.learn", bool, "policy.learn = true", _of_ppo(FOR_RULES_AS_WELL)),
    Need("policy.kind", lambda kind: kind == "constant", "policy.kind = constant", ("policy.constant",)),
    Need("ppo.entropy_rounds", bool, "ppo.entropy_rounds from 1 on", ("ppo.entropy_final",)),
    Need("task.mixture", bool, "tasks in task.mixture", ("task.instances",)),
    Need(
        "evaluation.rounds",
        bool,
        "evaluation.rounds from 1 on",
        ("evaluation.hosts", "evaluation.seed", "evaluation.rivals", "evaluation.constant"),
    ),
    Need(
        "seeds.gates",
        lambda gates: gates == "strict",
        "seeds.gates = strict",
        (
            "seeds.min_blending_epochs",
            "gates.min_accuracy_gain",
            "gates.min_gradient_ratio",
            "gates.min_contribution",
        ),
    ),
    Need("governor.veto", bool, "governor.veto = true", ("governor.veto_epochs",)),
    Need("telemetry.stride", lambda stride: stride == 0, "telemetry.stride = 0", ("telemetry.budget",)),
    Need("telemetry.debug_every", bool, "telemetry.debug_every from 1 on", ("telemetry.debug_epochs",)),
    Need(
        "telemetry.escalate_on",
        lambda severity: severity != "off",
        "telemetry.escalate_on = warning or critical",
        ("telemetry.escalate_epochs", "telemetry.escalate_share"),
    ),
    Need("profiler.rounds", bool, "rounds in profiler.rounds", ("profiler.epochs",)),
    *map(_modes_that_pay, PAYING_MODES),
)
"""Options that depend on each switch. None of these switches can be changed while a run trains."""


def value_of(config: Config, key: str) -> Any:
    """Value of an option."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def unmet_needs(config: Config) -> Iterator[tuple[str, Need]]:
    """The options that are idle, each with a need of it that is not met."""
    for need in NEEDS:
        if not need.is_met(value_of(config, need.switch)):
            for key in need.options:
                yield key, need
