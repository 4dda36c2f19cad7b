"""Options of what surrounds the training: telemetry, profiler, checkpoints, journal, alerts, metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from esper_overwatch.protocol.messages.vocabulary import Level

from .section import Section, count, number


class TelemetryConfig(Section, frozen=True):
    level: Annotated[
        Level,
        Meta(description="Level of detail at which telemetry is collected when the run starts"),
    ] = "NORMAL"
    budget: Annotated[
        float,
        number(
            "Share of the time for collecting drift and, at level DEBUG, layers; "
            "beyond it the interval grows",
            le=1.0,
            ge=1e-6,
        ),
    ] = 0.01
    stride: Annotated[
        int,
        count(
            "Interval in epochs between collections of drift and layers; 0 = by the clock within "
            "telemetry.budget, at other epochs in each run",
            ge=0,
        ),
    ] = 1
    debug_every: Annotated[
        int,
        count(
            "Interval in rounds between rounds that begin at level DEBUG, from the first on; 0 = never", ge=0
        ),
    ] = 0
    debug_epochs: Annotated[
        int, count("Epochs at level DEBUG at the beginning of a round chosen by telemetry.debug_every")
    ] = 1
    escalate_on: Annotated[
        Literal["off", "warning", "critical"],
        Meta(description="Severity from which an anomaly escalates its env, or all envs, to level DEBUG"),
    ] = "warning"
    escalate_epochs: Annotated[int, count("Epochs that an automatic escalation lasts")] = 5
    escalate_share: Annotated[
        float,
        number(
            "Largest share of a round's epochs that automatic escalations take; less than one epoch: none",
            le=1.0,
        ),
    ] = 0.25


class ProfilerConfig(Section, frozen=True):
    rounds: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...],
        Meta(
            max_length=100,
            description=(
                "Rounds since this start, from 1, whose last epochs and PPO update are profiled; empty = none"
            ),
        ),
    ] = ()
    epochs: Annotated[int, count("Last epochs of a round in profiler.rounds that are profiled")] = 2


class CheckpointConfig(Section, frozen=True):
    keep: Annotated[
        int, count("Number of newest checkpoints to keep, besides best and tagged ones", le=1000)
    ] = 3
    every_seconds: Annotated[
        int,
        count(
            "Interval in seconds between checkpoints within a round; 0 = only at the end of rounds",
            ge=0,
            le=86_400,
        ),
    ] = 600


class JournalConfig(Section, frozen=True):
    segment_bytes: Annotated[
        int, count("Size in bytes at which a journal segment is closed and compressed", ge=65_536, le=2**40)
    ] = 64 * 1024 * 1024
    segment_seconds: Annotated[
        int, count("Age in seconds at which a journal segment is closed and compressed", le=31_536_000)
    ] = 3600
    keep_bytes: Annotated[
        int,
        count(
            "Total size in bytes beyond which the oldest compressed segments are deleted; 0 = keep all",
            ge=0,
            le=2**60,
        ),
    ] = 0
    keep_share: Annotated[
        float,
        Meta(
            description="Share of the disk that compressed segments of ended runs may take, but for pinned "
            "ones; beyond it the oldest are deleted when a run starts; 0 = keep all",
            ge=0.0,
            le=1.0,
        ),
    ] = 0.1


class AlertsConfig(Section, frozen=True):
    file: Annotated[
        str,
        Meta(description="File of the rules that raise alerts; empty = alerts.toml in the user's settings"),
    ] = ""


class MetricsConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="Address HOST:PORT at which Prometheus may scrape the run; port 0 = any; empty = none"
        ),
    ] = ""
    allow_unauthenticated: Annotated[
        bool,
        Meta(
            description=(
                "Whether metrics.listen may be an address that other machines reach; whoever reaches it "
                "reads all metrics, without key and encryption"
            )
        ),
    ] = False
