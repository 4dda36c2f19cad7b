"""Metrics of a run for a scrape: every metric's name, unit and meaning.

Names end in their unit, counters in `_total`; a share from 0 to 1 is a `_ratio`. Labels take few values: no
client, env, slot or message is one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from esper_overwatch.protocol.messages.events import (
    CheckpointSaved,
    EpochFinished,
    PPOUpdate,
    RoundFinished,
    RunStarted,
)
from esper_overwatch.protocol.messages.vocabulary import LEVELS, RunState, Stage
from esper_overwatch.protocol.server.emitter import MAX_QUEUED
from esper_overwatch.protocol.server.server import Server

from .totals import SCOPES, RunTotals, scope_of

Labelled: TypeAlias = Mapping[Any, float | None]
"""Values by the text of the one label, or by a tuple of the labels' texts; None was not measured."""


class Families:
    """Collects the families of one scrape, in order.

    Args:
        run: name of the run.
    """

    def __init__(self, run: str) -> None:
        self.all: list[Metric] = []
        self._run = run

    def gauge(self, name: str, about: str, value: float | None) -> None:
        """A value that goes up and down."""
        self.gauges(name, about, (), {(): value})

    def counter(self, name: str, about: str, value: float | None) -> None:
        """A count that starts at 0 with each boot; `name` ends in `_total`."""
        self.counters(name, about, (), {(): value})

    def gauges(self, name: str, about: str, labels: Sequence[str], values: Labelled) -> None:
        """A gauge with labels beside `run`."""
        self._add(GaugeMetricFamily(f"esper_{name}", about, labels=["run", *labels]), values)

    def counters(self, name: str, about: str, labels: Sequence[str], values: Labelled) -> None:
        """A counter with labels beside `run`."""
        assert name.endswith("_total"), name
        self._add(CounterMetricFamily(f"esper_{name}", about, labels=["run", *labels]), values)

    def summary(self, name: str, about: str, count: int, total: float) -> None:
        """A number of measurements and their sum; nothing where there are none."""
        if count:
            family = SummaryMetricFamily(f"esper_{name}", about, labels=["run"])
            family.add_metric([self._run], count, total)
            self.all.append(family)

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, values: Labelled) -> None:
        for key, value in values.items():
            if value is not None:
                labels = (key,) if isinstance(key, str) else key
                family.add_metric([self._run, *labels], value)
        if family.samples:
            self.all.append(family)


MIN_INTERVAL_SECONDS = 0.5
"""Scrapes that come faster get the metrics of the one before."""


class RunCollector(Collector):
    """Collects from what the server and the totals hold; any thread may ask, and none of the trainer's waits.

    Args:
        server: of the run.
        totals: what its events amount to.
    """

    def __init__(self, server: Server, totals: RunTotals) -> None:
        self._server, self._totals = server, totals
        self._collecting = threading.Lock()
        self._collected: list[Metric] = []
        self._collected_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Nothing: which metrics there are depends on what has been measured."""
        return []

    def collect(self) -> Iterable[Metric]:
        with self._collecting:
            if time.monotonic() - self._collected_at >= MIN_INTERVAL_SECONDS:
                families = Families(self._server.run.name)
                for add in (_add_run, _add_clock, _add_wire):
                    add(families, self._server, self._totals)
                for add_totals in (
                    _add_epoch,
                    _add_round,
                    _add_update,
                    _add_evaluations,
                    _add_drift,
                    _add_seeds,
                    _add_incidents,
                    _add_checkpoints,
                    _add_machine,
                ):
                    add_totals(families, self._totals)
                self._collected, self._collected_at = families.all, time.monotonic()
            return self._collected


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the finite values; None where there are none."""
    finite = _finite(values)
    return math.fsum(finite) / len(finite) if finite else None


def largest(values: Iterable[float | None]) -> float | None:
    """Largest of the finite values; None where there are none."""
    return max(_finite(values), default=None)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _one_of(names: Sequence[str], now: str) -> dict[str, float]:
    return {name: float(name == now) for name in names}


def _add_run(families: Families, server: Server, totals: RunTotals) -> None:
    started = totals.newest(RunStarted)
    if started is not None:
        labels = {
            "run_id": server.run.id,
            "boot": server.boot,
            "version": started.version,
            "torch": started.torch,
            "device": started.device,
            "task": started.task,
            "policy": started.policy,
        }
        about = "What is trained, by what; the value is always 1."
        families.gauges("run_info", about, tuple(labels), {tuple(labels.values()): 1.0})
        families.gauge("ranks", "Processes that train the run.", started.ranks)
        families.gauge("envs", "Hosts that are trained side by side.", started.envs)
        families.gauge("episode_epochs", "Epochs of an episode.", started.episode_epochs)
        about = "Rounds to train; absent where the run trains until it is stopped."
        families.gauge("rounds_planned", about, started.rounds or None)
    about = "Unix time at which the daemon started."
    families.gauge("start_time_seconds", about, server.started / 1e6)
    about = "Whether the run is in this state: 1 or 0."
    families.gauges("run_state", about, ("state",), _one_of(get_args(RunState), server.state))
    about = "Whether telemetry is collected at this level: 1 or 0."
    families.gauges("telemetry_level", about, ("level",), _one_of(LEVELS, server.emitter.context.level))


def _add_clock(families: Families, server: Server, totals: RunTotals) -> None:
    clock = server.emitter.context
    families.gauge("round", "Rounds begun, those before a resume included.", clock.round)
    families.gauge("epoch", "Epochs finished in the current episode.", clock.epoch)
    families.counter("rounds_total", "Rounds finished since the daemon started.", totals.rounds)
    families.counter("epochs_total", "Epochs trained since the daemon started.", server.num_epochs)
    about = "Seconds since the trainer last finished an epoch, or since the start."
    families.gauge("trainer_beat_age_seconds", about, server.trainer_beat.beat_age_ms / 1000)
    about = "Seconds that epochs took; not measured at telemetry level OFF."
    families.summary("epoch_duration_seconds", about, totals.epochs_measured, totals.epoch_seconds)
    about = "Seconds of the epochs by phase; not measured at telemetry level OFF."
    families.counters("phase_seconds_total", about, ("phase",), dict(totals.phase_seconds))


def _add_epoch(families: Families, totals: RunTotals) -> None:
    epoch = totals.newest(EpochFinished)
    if epoch is None:
        return
    gauge = families.gauge
    about = "Validation accuracy after the newest epoch, mean of the envs."
    gauge("validation_accuracy_mean_ratio", about, mean(epoch.val_accuracy))
    about = "Validation accuracy after the newest epoch, best of the envs."
    gauge("validation_accuracy_best_ratio", about, largest(epoch.val_accuracy))
    about = "Validation loss after the newest epoch, mean of the envs where it is finite."
    gauge("validation_loss_mean_nats", about, mean(epoch.val_loss))
    about = "Training loss of the newest epoch, mean of the envs where it is finite."
    gauge("training_loss_mean_nats", about, mean(epoch.train_loss))
    about = "Sum of rewards since the episode began, mean of the envs."
    gauge("episode_return_mean", about, mean(epoch.episode_return))
    about = "Parameters of a host and its seeds, mean of the envs."
    gauge("parameters_mean", about, mean(epoch.parameters))
    about = "L2 norm of a host's gradient, largest of the envs where it is finite."
    gauge("host_gradient_norm_max", about, largest(epoch.host_grad_norm))
    about = "Slots of all envs by the stage of their seed; DORMANT slots are empty."
    found = Counter(chain.from_iterable(epoch.stage))
    families.gauges("slots", about, ("stage",), {stage.name: found[stage] for stage in Stage})


def _add_round(families: Families, totals: RunTotals) -> None:
    done = totals.newest(RoundFinished)
    if done is None:
        return
    gauge = families.gauge
    gauge("round_duration_seconds", "Seconds that the newest finished round took.", done.seconds)
    about = "Epochs per second in the newest finished round, all envs together."
    gauge("round_env_epochs_per_second", about, done.env_epochs_per_second)
    about = "Return of the newest finished round's episodes, mean of the envs."
    gauge("round_return_mean", about, done.return_mean)
    about = "Return of the newest finished round's episodes, percentiles over the envs."
    percentiles = {"10": done.return_p10, "50": done.return_p50, "90": done.return_p90}
    families.gauges("round_return", about, ("percentile",), percentiles)
    about = "Validation accuracy at the end of the newest finished round, mean of the envs."
    gauge("round_accuracy_mean_ratio", about, done.accuracy_mean)
    about = "Validation accuracy at the end of the newest finished round, best of the envs."
    gauge("round_accuracy_best_ratio", about, done.accuracy_best)
    about = "Test accuracy at the end of the newest finished round, mean of the envs."
    gauge("round_test_accuracy_mean_ratio", about, done.test_accuracy_mean)
    about = "Test accuracy at the end of the newest finished round, best of the envs."
    gauge("round_test_accuracy_best_ratio", about, done.test_accuracy_best)


def _add_evaluations(families: Families, totals: RunTotals) -> None:
    def by_policy(name: str, about: str, field: str) -> None:
        found = {policy: getattr(event, field) for policy, event in dict(totals.evaluations).items()}
        if found:
            families.gauges(name, about, ("policy",), found)

    about = "Return of the policy's newest episode on the held-out hosts, mean of the hosts."
    by_policy("evaluation_return_mean", about, "return_mean")
    about = "Test accuracy at the end of that episode, mean of the hosts."
    by_policy("evaluation_test_accuracy_mean_ratio", about, "test_accuracy_mean")
    about = "Parameters that the policy had added at the end of that episode, mean of the hosts."
    by_policy("evaluation_added_parameters_mean", about, "added_parameters_mean")


def _add_update(families: Families, totals: RunTotals) -> None:
    families.counter("ppo_updates_total", "PPO updates since the daemon started.", totals.updates)
    update = totals.newest(PPOUpdate)
    if update is None:
        return
    gauge = families.gauge
    gauge("ppo_update_duration_seconds", "Seconds that the newest PPO update took.", update.seconds)
    gauge("ppo_policy_loss", "Policy loss of the newest PPO update.", update.policy_loss)
    gauge("ppo_value_loss", "Value loss of the newest PPO update.", update.value_loss)
    about = "Entropy of the policy over that of a uniform choice, newest PPO update."
    gauge("ppo_entropy_ratio", about, update.entropy)
    about = "KL divergence between the policies before and after the newest PPO update."
    gauge("ppo_kl_nats", about, update.approx_kl)
    gauge("ppo_clipped_ratio", "Share of clipped samples, newest PPO update.", update.clip_fraction)
    about = (
        "Share of the returns' variance that the critic explains; below 0 where it is worse than the mean."
    )
    gauge("ppo_explained_variance_ratio", about, update.explained_variance)
    about = (
        "Share of the returns' variance between envs at the same epoch that the critic explains: what it "
        "knows of an env beyond the time."
    )
    gauge("ppo_explained_variance_within_ratio", about, update.explained_variance_within)
    about = "L2 norm of the policy's gradient before clipping, newest PPO update."
    gauge("ppo_gradient_norm", about, update.grad_norm)
    gauge("ppo_learning_rate", "Learning rate of the newest PPO update.", update.learning_rate)


def _add_drift(families: Families, totals: RunTotals) -> None:
    norm: dict[str, list[float | None]] = {}
    health: dict[str, list[float | None]] = {}
    for drift in list(totals.drifts.values()):
        for source, of_norm, of_health in zip(
            drift.source, drift.norm_drift, drift.health_drift, strict=True
        ):
            scope = scope_of(source)
            if scope not in SCOPES:
                continue
            norm.setdefault(scope, []).append(of_norm)
            health.setdefault(scope, []).append(of_health)
    about = "Distance of a gradient's norm from its running average, over that average; largest of the scope."
    families.gauges(
        "gradient_norm_drift_ratio", about, ("scope",), {scope: largest(of) for scope, of in norm.items()}
    )
    about = (
        "Distance of a gradient's health from its running average, over that average; largest of the scope."
    )
    families.gauges(
        "gradient_health_drift_ratio", about, ("scope",), {scope: largest(of) for scope, of in health.items()}
    )


def _add_seeds(families: Families, totals: RunTotals) -> None:
    about = "Seeds that entered this stage since the daemon started."
    families.counters("seed_stage_entries_total", about, ("stage",), dict(totals.stage_entries))
    about = "Seeds of episodes that ended since the daemon started, by how they ended and blueprint."
    families.counters("seed_outcomes_total", about, ("outcome", "blueprint"), dict(totals.outcomes))
    about = "Hosts that the governor put back to their last good epoch since the daemon started."
    families.counters("governor_rollbacks_total", about, ("reason",), dict(totals.rollbacks))


def _add_incidents(families: Families, totals: RunTotals) -> None:
    labels = ("kind", "severity")
    about = "Incidents that go on now, by the kind of their worst signal."
    families.gauges("incidents_open", about, labels, totals.open_incidents)
    about = "Incidents that began, or became as severe as this, since the daemon started."
    families.counters("incidents_total", about, labels, dict(totals.incidents))


def _add_wire(families: Families, server: Server, totals: RunTotals) -> None:
    emitter = server.emitter
    about = "Events published since the daemon started."
    families.counters("events_total", about, ("stream",), dict(totals.events))
    about = "Events that wait for the I/O thread."
    families.gauges("event_queue_length", about, ("stream",), emitter.waiting)
    about = "Events that may wait; one more is dropped."
    families.gauges("event_queue_limit", about, ("stream",), dict(MAX_QUEUED))
    about = "Events dropped since their queue was full, since the daemon started."
    families.counters("events_dropped_total", about, ("stream",), emitter.dropped)
    about = "Events that the journal could not keep while its disk refused, since the daemon started."
    families.counter("journal_events_lost_total", about, totals.journal_lost)
    families.gauge("subscribers", "Clients that follow the run live.", server.subscribers)
    families.gauge("commands_waiting", "Accepted commands that wait for an epoch's end.", len(server.mailbox))
    about = (
        "Commands by what became of them since the daemon started; an accepted one is done or failed later."
    )
    families.counters("commands_total", about, ("outcome",), dict(totals.commands))
    about = "Steps of the I/O thread that failed since the daemon started; status names them."
    families.counter("wire_faults_total", about, sum(dict(server.faults.counts).values()))
    families.gauge("wire_failing_steps", "Steps of the I/O thread that fail now.", len(server.faults.current))


def _add_checkpoints(families: Families, totals: RunTotals) -> None:
    about = "Attempts to save a checkpoint since the daemon started, by outcome."
    families.counters("checkpoints_total", about, ("outcome",), dict(totals.checkpoints))
    about = "Unix time of the newest checkpoint; its age is time() less this."
    families.gauge("checkpoint_time_seconds", about, totals.checkpoint_time)
    saved = totals.newest(CheckpointSaved)
    if saved is not None:
        families.gauge("checkpoint_size_bytes", "Size of the newest checkpoint.", saved.bytes)
        families.gauge("checkpoint_duration_seconds", "Seconds that saving it took.", saved.seconds)


def _add_machine(families: Families, totals: RunTotals) -> None:
    samples = {str(rank): sample for rank, sample in sorted(dict(totals.samples).items())}

    def add(name: str, about: str, values: dict[str, float | None]) -> None:
        families.gauges(name, about, ("rank",), values)

    def by_rank(field: str, scale: float = 1.0) -> dict[str, float | None]:
        found = {rank: getattr(sample, field) for rank, sample in samples.items()}
        return {rank: None if value is None else value * scale for rank, value in found.items()}

    add("cpu_cores_used", "Cores that the process keeps busy.", by_rank("cpu_percent", 0.01))
    add("cpu_cores", "Cores that the process may use.", by_rank("cores"))
    about = "Share of the machine's cores that is busy, with all processes."
    add("machine_cpu_utilization_ratio", about, by_rank("machine_cpu_percent", 0.01))
    add("machine_cpu_cores", "Cores of the machine.", by_rank("machine_cores"))
    add("load_average", "Load of the machine, mean of the last minute.", by_rank("load1"))
    add("resident_memory_bytes", "Memory that the process has.", by_rank("rss"))
    about = "Memory in use of esper_memory_limit_bytes, by all processes."
    add("memory_used_bytes", about, by_rank("memory_used"))
    about = "Memory that there is for the process: of the machine, or of its cgroup."
    add("memory_limit_bytes", about, by_rank("memory_total"))
    add("disk_free_bytes", "Free space on the disk of the run's folder.", by_rank("disk_free"))
    add(
        "gpu_utilization_ratio",
        "Share of the last second in which the GPU worked.",
        by_rank("gpu_percent", 0.01),
    )
    add("gpu_memory_used_bytes", "GPU memory in use, by all processes.", by_rank("gpu_memory"))
    add("gpu_memory_size_bytes", "GPU memory that there is.", by_rank("gpu_memory_total"))
    add("gpu_temperature_celsius", "Temperature of the GPU.", by_rank("gpu_celsius"))
