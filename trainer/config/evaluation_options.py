"""Options of the evaluation that training does now and then."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section, count


class EvaluationConfig(Section, frozen=True):
    rounds: Annotated[
        int,
        count("Interval in rounds between evaluations of the policy on held-out hosts; 0 = never", ge=0),
    ] = 0
    hosts: Annotated[
        int, count("Held-out hosts of an evaluation; a mixture deals them out to its tasks", le=4096)
    ] = 40
    seed: Annotated[
        int,
        count(
            "Seed of the held-out hosts, the same for all runs to compare; esper-daemon compare has others, "
            "of seed 1",
            ge=0,
            le=2**31 - 1,
        ),
    ] = 2
    rivals: Annotated[
        tuple[Literal["no_growth", "fixed", "heuristic", "random"], ...],
        Meta(
            max_length=4,
            description="Rules that are played on the same hosts, each once, in the run's first rounds",
        ),
    ] = ("no_growth", "fixed", "heuristic")
    constant: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description=(
                "Constant schedule that is one more rival, as policy.constant; empty = there is none"
            ),
        ),
    ] = ()
