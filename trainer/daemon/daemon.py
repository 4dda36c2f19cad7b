"""The life of the daemon's process: from its folder and its lock to its last event."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch

from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.errors import INTERRUPTED_EXIT, EsperError
from esper_overwatch.protocol.machine.provenance import ProvenanceReport
from esper_overwatch.protocol.messages.events import (
    LogLine,
    ParamChanged,
    PostmortemWritten,
    RankLost,
    RunStopped,
    reason_of_done,
)
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server.disk import DiskWatch
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.checkpoint import Checkpoints
from esper_overwatch.trainer.compute.device import (
    configure_allocator,
    is_out_of_memory,
    limit_threads,
    prepare_device,
    raise_file_limit,
    resolve_device,
)
from esper_overwatch.trainer.compute.process_group import ProcessGroup, RankLostError
from esper_overwatch.trainer.config.anomaly_options import configured_thresholds
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.service_options import MetricsConfig
from esper_overwatch.trainer.control.checkpoint_saver import CheckpointSaver
from esper_overwatch.trainer.control.command_runner import CommandRunner
from esper_overwatch.trainer.control.run_control import RunControl
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.data.text import Text
from esper_overwatch.trainer.doctor.bundle import PostmortemReport
from esper_overwatch.trainer.hooks import StopRun
from esper_overwatch.trainer.hosts.task_defaults import build_model, check_sizes, resolve_task_defaults
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.ppo import PolicyDiverged
from esper_overwatch.trainer.policy.saved_policy import SavedPolicy
from esper_overwatch.trainer.ranks.rank_zero import RankZero
from esper_overwatch.trainer.ranks.worker import run_worker
from esper_overwatch.trainer.telemetry.allocator import sample_device
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from esper_overwatch.trainer.telemetry.log_lines import IN_EVENT
from esper_overwatch.trainer.telemetry.recorder import Recorder, RunShape

from . import postmortem
from .background import is_detached, report_ready
from .first_event import first_event
from .fork import Fork
from .logging_setup import dump_stacks, reopen, set_up
from .rank0_hooks import Rank0Hooks
from .resume import (
    ResumePoint,
    ResumeRequest,
    check_is_new,
    load_configuration,
    replaced_configuration,
    resumed_name,
    rewind_of,
    run_progress,
)
from .run_server import free_disk_aside, open_server
from .signals import END_SIGNALS, EndSignals, Interrupted, SignalListener
from .start_progress import StartProgress
from .systemd import Notifier

if TYPE_CHECKING:
    from esper_overwatch.trainer.metrics.listener import MetricsListener

logger = logging.getLogger(__name__)

UNSAVED_EXIT = 10
FAILED_EXIT = 11


@dataclass(frozen=True)
class _End:
    """End of the training."""

    reason: str
    exit_code: int = 0
    error: str | None = None
    cause: BaseException | None = None
    """Exception that ended it abnormally."""


def run_daemon(
    *,
    name: str | None,
    resume: str | None,
    preset: str | None = None,
    file: Path | None,
    sets: Iterable[str],
    unattended: bool = False,
    checkpoint: str | None = None,
    fork: Fork | None = None,
) -> int:
    """Train, with the other ranks that torchrun has started, until the run is done, stopped or has failed.

    Args:
        unattended: resume past damaged checkpoints, with a warning.
        checkpoint: what to resume from in place of the newest: `best`, a tag or a file.
        fork: where a new run begins.

    Returns:
        The process's exit code.

    Raises:
        EsperError: it could not be started; nothing was trained.
    """
    group = ProcessGroup.join(run_progress(name, resume))
    if group.rank > 0:
        return run_worker(group)
    resume = resumed_name(group, name, resume)
    if group.restarted:
        unattended, checkpoint = True, None  # nobody is there; and it was gone back to already
    name, fork = (name, fork) if resume is None else (find_run(resume).name, None)
    sourced = load_configuration(fork.source if fork else name if resume else None, preset, file, sets)
    config = sourced.config
    group.check_split(config)
    metrics = _open_metrics(config.metrics)
    device = _prepare_device(config, group)
    with StartProgress() as progress:
        progress.begin(f"loading {clean_text(config.task.label)}")
        data = load_task(config.task, device)
        sourced = resolve_task_defaults(sourced, data.name, data.kind)
        config = sourced.config
        _tell(check_sizes(config, data))
        progress.begin("building a host")
        _check_host(config, data, begins=not (resume or fork))
        with RunFolder.claim(name, prefix=config.task.label) as run:
            check_is_new(run, resume)
            group.record_home(f"{socket.gethostname()}:{run.path}")
            request = ResumeRequest(checkpoint, unattended) if resume else None
            progress.begin(f"building {config.envs.count} hosts")
            try:
                request = fork.begin(run, config) if fork else request
                daemon = Daemon(run, config, device, data, request, process_group=group, metrics=metrics)
                progress.close()
                with replaced_configuration(run.path, sourced):
                    daemon.open()
                return daemon.live()
            except EsperError:
                run.abandon()  # a start that is refused leaves no folder
                raise


def _check_host(config: Config, data: Task, *, begins: bool) -> None:
    """End what cannot be grown, or does not fit the policy that it begins with, before there is a folder."""
    _, seeds = build_model(config, data)
    if config.policy.file and begins:
        SavedPolicy.read(Path(config.policy.file)).check_fit(config, len(seeds.slots))


def _prepare_device(config: Config, group: ProcessGroup) -> torch.device:
    configure_allocator(config.cuda, os.environ)
    device = resolve_device(config.device, group.local_rank)
    prepare_device(config.cuda, device)
    return device


def _tell(line: str | None) -> None:
    if line is not None:
        print(f"esper-daemon: {clean_text(line)}", file=sys.stderr, flush=True)


class Daemon:
    """One boot of one run."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        device: torch.device,
        data: Task,
        resume: ResumeRequest | None,
        *,
        process_group: ProcessGroup | None = None,
        metrics: MetricsListener | None = None,
    ) -> None:
        limit_threads()
        raise_file_limit()
        self.run, self.config, self.device = run, config, device
        self.process_group = process_group = process_group or ProcessGroup()
        self.checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
        point = None
        if resume is not None:
            point = ResumePoint.find(self.checkpoints, config, process_group.size, resume)
            config = config if point is None else point.configure(config)
        known = point.execution if point else None
        self.trainer = Trainer(config, data, device, known, process_group)
        execution = self.trainer.population.execution
        emitter = Emitter()
        self.rank_zero = RankZero(process_group, emitter)
        self.rank_zero.build_trainers(config, execution, may_be_late=self.trainer.reports.may_be_late)
        envs, epochs = config.envs.count, config.episode_epochs
        self.plan = CollectionPlan(emitter, config.telemetry, envs=envs, episode_epochs=epochs)
        thresholds = configured_thresholds(config.anomalies)
        self.recorder = Recorder(
            emitter, _run_shape(config, self.trainer, data), self.plan, config.drift, thresholds
        )
        self.control = RunControl(config, self.trainer, self.rank_zero, self.recorder, self.plan)
        self.server = open_server(run, config, execution, emitter, self.control)
        self.metrics = metrics
        self.saver = CheckpointSaver(
            self.control,
            self.checkpoints,
            emitter,
            partial(self.server.flush, synced=True),
            run.find_displacement,
        )
        self.commands = CommandRunner(self.control, self.server, self.saver, self.plan, run.traces)
        disk = DiskWatch(emitter.emit, self.recorder.record_sample, lambda: self.saver.num_bytes)
        self.sampler = sample_device(run.path, device, disk.take)
        self.hooks = Rank0Hooks(
            config,
            self.trainer,
            self.server,
            self.recorder,
            self.plan,
            self.commands,
            self.saver,
            self.rank_zero,
        )
        process_group.barrier_or_raise()
        self.resumed_round = self._restore(point)
        self._rewind = rewind_of(run, self.server.last_before, self.trainer.round, self.trainer.epoch)
        self._resumed_from = point
        self._tokens_per_character = data.tokens_per_character if isinstance(data, Text) else None

    def _restore(self, point: ResumePoint | None) -> int | None:
        """Load the checkpoint on all ranks; None where there is none (then training begins again).

        Returns:
            The last finished round.
        """
        if point is None:
            self.process_group.scatter_bytes([b""] * self.process_group.size)
            return None
        self.process_group.scatter_bytes(point.rank_states)
        self.control.load_state_dict(point.state)
        self.control.parameters.enforce(point.as_configured)
        return self.trainer.round if self.trainer.epoch == 0 else self.trainer.round - 1

    def open(self) -> None:
        """Open the server, with which a run begins that a signal ends; raises what `Server.start` does."""
        self._end_signals = EndSignals(self.commands.request_stop)
        self.server.on_deleted = self.commands.stop_deleted
        self.server.start()

    def live(self) -> int:
        """Train, close in order; returns the exit code."""
        log = set_up(self.run.log, self.server.emitter, terminal=not is_detached())
        free_disk_aside(self.config)
        end_signals = self._end_signals
        if self.metrics is not None:
            self._serve_metrics(self.metrics)
        signal_listener = SignalListener(lambda number: self._on_signal(number, log, end_signals))
        notifier = Notifier(lambda: self.server.trainer_beat)
        signal.signal(signal.SIGUSR2, lambda *_: self.commands.request_escalation())
        signal.signal(signal.SIGHUP, lambda *_: self._on_hangup(log, notifier))
        self._announce()
        if is_detached():
            report_ready(self.run.log)
        self.sampler.start()
        self.server.set_state("TRAINING")
        notifier.ready()
        logger.info(
            "run %s (%s), boot %s, pid %d on %s; %s; %s",
            self.run.name,
            self.run.id,
            self.server.boot,
            os.getpid(),
            self.device,
            "a new run" if self.resumed_round is None else f"goes on after round {self.resumed_round}",
            self.trainer.population.execution.as_options(),
        )
        if self._resumed_from is not None:
            for error in self._resumed_from.damaged:
                logger.warning("%s; the run goes on from %s", error, self._resumed_from.path.name)
            self._resumed_from = None  # its state is large
        try:
            end = end_signals.run(self._train)
        except Interrupted as interrupted:
            end = _End("interrupted", INTERRUPTED_EXIT, cause=interrupted)
        self.server.set_state("STOPPING", end.reason)
        notifier.stopping()
        if (end.cause is not None or end_signals.count) and not self.run.is_deleted:
            self._write_postmortem(end)
        self.sampler.close()
        self._provenance.close()
        self.commands.close(failed=end.error)
        words = "run %s ends with exit code %d: %s"
        logger.info(words, self.run.name, end.exit_code, end.reason, extra=IN_EVENT)
        self.server.emitter.emit(
            RunStopped(reason=end.reason, exit_code=end.exit_code, rounds=self.trainer.round, error=end.error)
        )
        if self.metrics is not None:
            self.metrics.close()
        self.server.close(end.reason)
        signal_listener.close()
        notifier.close()
        log.flush()
        return end.exit_code

    def _serve_metrics(self, listener: MetricsListener) -> None:
        from esper_overwatch.trainer.metrics.collector import RunCollector
        from esper_overwatch.trainer.metrics.totals import RunTotals

        point = self._resumed_from
        totals = RunTotals(self.config.seeds.blueprints, point.path.stat().st_mtime if point else None)
        self.server.observe(totals.observe)
        listener.serve(RunCollector(self.server, totals))
        self.server.metrics = {"address": listener.address}

    def _write_postmortem(self, end: _End) -> None:
        subject = postmortem.PostmortemSubject(
            folder=self.run.postmortem,
            server=self.server,
            config=self.config,
            device=self.device,
            population=self.trainer.population,
        )
        report = PostmortemReport(
            run=self.run.name,
            boot=self.server.boot,
            reason=end.reason,
            exit_code=end.exit_code,
            error=end.error,
            at=time.time_ns() // 1000,
            round=self.trainer.round,
            epoch=self.trainer.epoch,
        )
        path = postmortem.write(subject, report, end.cause)
        if path is not None:
            self.server.emitter.emit(PostmortemWritten(path=str(path), reason=end.reason))

    def _train(self) -> _End:
        """Train, and end the ranks; reports a lost rank whichever order found it."""
        try:
            self.rank_zero.start_epoch(self.plan.layer_envs)
            return self._train_to_end()
        except RankLostError as lost:
            self.saver.wait()
            return self._lost(lost)
        finally:
            self.saver.wait()

    def _train_to_end(self) -> _End:
        try:
            self.trainer.run(self.hooks)
        except StopRun as stop:
            self.rank_zero.shutdown()
            return self._end_at_boundary(stop.reason, stop.failed, stop)
        except RankLostError:
            raise
        except PolicyDiverged as diverged:
            logger.error("%s", diverged)
            return _End("the policy diverged", FAILED_EXIT, str(diverged), diverged)
        except Exception as error:
            if is_out_of_memory(error):
                logger.exception("out of memory on %s", self.device)
                return _End("out of memory", FAILED_EXIT, str(error) or "the machine's memory is full", error)
            logger.exception("training failed")
            return _End("training failed", FAILED_EXIT, f"{type(error).__name__}: {error}", error)
        self.rank_zero.shutdown()
        if self.commands.stops_after_round is not None:
            return _End(self.commands.stops_after_round)
        self.saver.wait()
        return self._end_at_boundary(reason_of_done(self.trainer.round), self.saver.error)

    def _end_at_boundary(self, reason: str, unsaved: str | None, cause: StopRun | None = None) -> _End:
        """An orderly end, but no success where the last checkpoint could not be saved.

        Args:
            unsaved: why it could not.
            cause: the stop that ended it.
        """
        if unsaved is None:
            return _End(reason)
        error = f"{self.checkpoints.folder}: {unsaved}"
        return _End(f"{reason}, without a checkpoint", UNSAVED_EXIT, error, cause)

    def _lost(self, lost: RankLostError) -> _End:
        """Report the loss of a rank, and the newest checkpoint to resume from."""
        saved = self.checkpoints.all()
        newest = saved[-1].name if saved else None
        logger.error("%s; %s", lost, f"resume from {newest}" if newest else "there is no checkpoint yet")
        self.server.emitter.emit(RankLost(error=str(lost), checkpoint=newest))
        return _End("a rank was lost", FAILED_EXIT, str(lost), lost)

    def _on_signal(self, number: int, log: IO[str], end_signals: EndSignals) -> None:
        """In the listener's thread, while a long operation still runs: clients learn of the end."""
        if number == signal.SIGUSR1:
            dump_stacks(log)
        elif number in END_SIGNALS and end_signals.is_training:
            self.server.set_state("STOPPING", signal.Signals(number).name)

    def _on_hangup(self, log: IO[str], notifier: Notifier) -> None:
        reopen(self.run.log, log)
        notifier.reloaded()
        message = "SIGHUP: the log is reopened"
        self.server.emitter.emit(LogLine(level="INFO", logger=__name__, message=message))

    def _announce(self) -> None:
        self.server.emitter.emit(
            first_event(
                self.run,
                self.server.boot,
                self.trainer,
                config=self.config,
                device=self.device,
                ranks=self.process_group.size,
                tokens_per_character=self._tokens_per_character,
                resumed_round=self.resumed_round,
            )
        )
        if self._rewind is not None:
            self.server.emitter.emit(self._rewind)
        for key, (configured, value) in self.control.parameters.changed.items():
            self.server.emitter.emit(ParamChanged(key=key, old=configured, new=value, by="resume"))
        self.recorder.report_active_anomalies()
        self.plan.report_in_force()
        self._provenance = ProvenanceReport(self.server.emitter.emit)
        run = self.run
        print(clean_text(f"run {run.name} ({run.id}) on {self.device}: {run.path}"), file=sys.stderr)


def _open_metrics(config: MetricsConfig) -> MetricsListener | None:
    """Listen for Prometheus where the configuration says so.

    Raises:
        ConfigError: its address cannot be used.
        ImportError: prometheus_client is not installed.
    """
    if not config.listen:
        return None
    from esper_overwatch.trainer.metrics.listener import MetricsListener

    return MetricsListener(config)


def _run_shape(config: Config, trainer: Trainer, data: Task) -> RunShape:
    population, envs, seed = trainer.population, config.envs, config.seed
    return RunShape(
        envs=envs.count,
        slots=population.slots,
        blueprints=config.seeds.blueprints,
        seed_parameters=population.parameters_seed.tolist(),
        rounds=config.rounds,
        host_parameters=population.parameters_host,
        rent=lambda: trainer.reward.run.cfg.rent,
        steps=config.task.batches_per_epoch,
        tasks=partial(data.names, seed, envs.count, envs.copies) if isinstance(data, Mixture) else None,
    )
