"""The life of the daemon's process: from its folder and its lock to its last event."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import msgspec
import torch

from protocol.commands import Params, ParamSetParams, SeedGerminateParams, SeedPruneParams
from protocol.errors import NameTaken, RunNotFound
from protocol.events import LogLine, ParamChanged, PostmortemWritten, RunStarted, RunStopped
from protocol.events import RankLost as RankLostEvent
from protocol.journal import JournalLimits
from protocol.runs import RunFolder, find_run
from protocol.server import Server
from protocol.version import __version__

from . import postmortem, settings
from .checkpoint import CheckpointError, Checkpoints
from .config import Config
from .data.registry import load as load_dataset
from .data.task import Task
from .detach import is_detached, report_ready
from .device import (
    allow_files,
    configure,
    configure_allocator,
    is_out_of_memory,
    limit_threads,
    resolve,
)
from .execution import Execution
from .follower import follow
from .hosts.families import build, fitted
from .intervention import Intervention
from .leader import Leader
from .logs import reopen, set_up
from .loop import Trainer
from .observer import Observer
from .operator import Operator, StopRun, WireFailed, takes_epochs
from .parameters import Parameters
from .policy.ppo import PolicyDiverged
from .ranks import RankLost, RanksError, World
from .seeds.stages import HEAD_NAMES, Op, Stage
from .systemd import Notifier
from .telemetry.levels import Levels
from .telemetry.recorder import Recorder, RunShape
from .telemetry.stride import Stride
from .telemetry.system import SystemSampler
from .wakeup import Wakeup

logger = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT)
FAILED = 11
INTERRUPTED = 130


class _Interrupted(BaseException):
    """A second signal: leave now."""


@dataclass(frozen=True)
class _End:
    """How the training ended."""

    reason: str
    exit_code: int = 0
    error: str | None = None
    cause: BaseException | None = None
    """What ended it abnormally."""


def run_daemon(
    *, name: str | None, resume: str | None, preset: str | None = None, file: Path | None, sets: Iterable[str]
) -> int:
    """Train, with the other ranks that torchrun has started, until the run is done, stopped or has failed.

    Returns:
        The process's exit code.

    Raises:
        EsperError: it could not be started; nothing was trained.
    """
    world = World.join()
    if world.rank > 0:
        return follow(world)
    if world.size > 1 and not (name or resume):
        raise RanksError("a run on several ranks needs a NAME, by which torchrun's restart finds it")
    if world.restarted and resume is None:
        resume = name
    saved = None
    if resume is not None:
        name = find_run(resume).name
        saved = _saved_configuration(name)
    config = settings.load(preset=preset, file=file, environ=os.environ, sets=sets, saved=saved)
    world.check_split(config)
    configure_allocator(config.cuda, os.environ)
    device = resolve(config.device, world.local_rank)
    task = config.task
    data = load_dataset(task.dataset, device, folder=task.data_dir, context=task.context)
    config = fitted(config, data)
    build(config, data)  # what cannot be grown ends it here, before there is a folder
    with RunFolder.claim(name, prefix=task.dataset) as run:
        if run.existed and resume is None and run.has_events:
            raise NameTaken(
                f"run {run.name} has been trained before; --resume {run.name} goes on, or choose another name"
            )
        (run.path / "config.json").write_bytes(msgspec.json.encode(config))
        return Daemon(run, config, device, data, resumed=resume is not None, world=world).live()


def _saved_configuration(name: str) -> Mapping[str, Any]:
    path = find_run(name).path / "config.json"
    try:
        tree: Mapping[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunNotFound(f"run {name} cannot be resumed: {path}: {error}") from None
    return tree


class Daemon:
    """One boot of one run."""

    def __init__(
        self, run: RunFolder, config: Config, device: torch.device, data: Task, *, resumed: bool,
        world: World | None = None,
    ) -> None:  # fmt: skip
        limit_threads()
        configure(config.cuda, device)
        allow_files()
        self.world = world = world or World()
        self.run = run
        self.config = config
        self.device = device
        self.checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
        self._newest = self.checkpoints.latest() if resumed else None
        self.trainer = Trainer(config, data, device, self._saved_execution(), world)
        execution = self.trainer.population.execution.told()
        world.tell({"config": msgspec.to_builtins(config), "execution": execution})
        self.levels = Levels(config.telemetry.level, config.envs.count)
        self.server = Server(
            run,
            hello={
                "task": config.task.dataset,
                "config": msgspec.to_builtins(config),
                "execution": execution,
            },
            limits=JournalLimits(
                segment_bytes=config.journal.segment_bytes,
                segment_seconds=config.journal.segment_seconds,
                keep_bytes=config.journal.keep_bytes,
            ),
            listen=config.wire.listen,
        )
        population = self.trainer.population
        self.shape = RunShape(
            envs=config.envs.count,
            slots=population.slots,
            blueprints=config.seeds.blueprints,
            seed_parameters=population.parameters_seed.tolist(),
            rounds=config.rounds,
        )
        self.leader = Leader(world, self.server.emitter)
        telemetry = config.telemetry
        self.recorder = Recorder(
            self.server.emitter, self.shape, self.levels, Stride(telemetry.stride, telemetry.budget)
        )
        self.operator = Operator(self, self.server, self.checkpoints, self.levels, run.traces)
        self.sampler = SystemSampler(run.path, device, self.recorder.system)
        self.observer = Observer(
            self.server,
            self.recorder,
            self.levels,
            self.operator,
            config=config,
            device=device,
            envs=len(world.rows(config.envs.count)),
            leader=self.leader,
        )
        self.parameters = Parameters(self.trainer)
        self.intervention = Intervention(self.trainer, world)
        self.server.check = self._check
        self.server.parameters = self.parameters.describe
        world.agree()
        self.resumed_round = self._restore()
        self._signals = 0
        self._training = True

    def _saved_execution(self) -> Execution | None:
        """How the run that is resumed was carried out; None where that is to be measured."""
        if self._newest is None:
            return None
        path, state = self._newest
        _require_same_shape(path, json.loads(state["config"]), msgspec.to_builtins(self.config))
        ranks = len(state.get("other_ranks", [])) + 1
        if ranks != self.world.size:
            raise CheckpointError(
                f"checkpoint {path.name} was made by {ranks} ranks, these are {self.world.size}; "
                f"start it with torchrun --nproc-per-node {ranks}"
            )
        return Execution.read(state["execution"]) if "execution" in state else None

    def _restore(self) -> int | None:
        """Load the newest checkpoint; None where there is none yet (then training begins anew)."""
        if self._newest is None:
            self.world.hand_out([b""] * self.world.size)
            return None
        (_, state), self._newest = self._newest, None
        self.world.hand_out([b"", *(bytes(tensor.numpy()) for tensor in state.get("other_ranks", []))])
        self.trainer.load_state_dict(state["trainer"])
        self.observer.load_state_dict(state["observer"])
        self.parameters.load_state_dict(state.get("parameters", {}))
        return self.trainer.round if self.trainer.epoch == 0 else self.trainer.round - 1

    # --- what a checkpoint is made of (operator.Run) -------------------------------------------

    @property
    def round(self) -> int:
        return self.trainer.round

    @property
    def epoch(self) -> int:
        return self.trainer.epoch

    def state_dict(self) -> dict[str, Any]:
        return {
            "config": msgspec.json.encode(self.config).decode(),
            "execution": self.trainer.population.execution.told(),
            "trainer": self.trainer.state_dict(),
            "other_ranks": [torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in self.leader.states()],
            "observer": self.observer.state_dict(),
            "parameters": self.parameters.state_dict(),
        }

    # --- what is steered (operator.Run) ------------------------------------------------------------

    @property
    def episode_epochs(self) -> int:
        return self.config.episode_epochs

    @property
    def can_intervene(self) -> bool:
        return self.intervention.possible

    def intervene(self, params: Params) -> dict[str, Any]:
        assert isinstance(params, SeedGerminateParams | SeedPruneParams)
        act = self.intervention.act_of(params)
        self.leader.act(act)
        stage = self.intervention.carry_out(act, self.observer.intervened)
        return {"env": params.env, "slot": params.slot, "stage": stage.name}

    def set_parameter(self, key: str, value: float) -> float:
        self.leader.set_parameter(key, value)
        return self.parameters.set(key, value)

    def _check(self, params: Params) -> str | None:
        """In the I/O thread: what a command asks for exists in this run; why it will wait, where it will."""
        if isinstance(params, ParamSetParams):
            self.parameters.check(params.key, params.value)
        elif isinstance(params, SeedGerminateParams | SeedPruneParams):
            self.intervention.check(params)
        if self.server.state != "PAUSED" or not takes_epochs(params):
            return None
        return "the run is paused, and this is done only when it has trained on: resume it"

    def hold(self) -> None:
        self.leader.hold()

    # --- life --------------------------------------------------------------------------------------

    def live(self) -> int:
        """Open up, train, close in order; the exit code."""
        self.server.start()
        log = set_up(self.run.log, self.server.emitter, terminal=not is_detached())
        for number in ENDING:
            signal.signal(number, self._on_signal)
        wakeup = Wakeup(self._heard)
        notifier = Notifier(lambda: self.server.trainer_beat)
        signal.signal(signal.SIGUSR2, lambda *_: self.operator.request_escalation())
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
            self.trainer.population.execution,
        )
        self.leader.go(self.recorder.layer_envs)
        end = self._train()
        self._training = False
        notifier.stopping()
        if end.cause is not None or self._signals:
            self._write_postmortem(end)
        self.sampler.close()
        self.operator.close(failed=end.error)
        logger.info("run %s ends with exit code %d: %s", self.run.name, end.exit_code, end.reason)
        self.server.emitter.emit(
            RunStopped(reason=end.reason, exit_code=end.exit_code, rounds=self.trainer.round, error=end.error)
        )
        self.server.close()
        wakeup.close()
        notifier.close()
        log.flush()
        return end.exit_code

    def _write_postmortem(self, end: _End) -> None:
        subject = postmortem.Subject(
            folder=self.run.postmortem,
            server=self.server,
            config=self.config,
            device=self.device,
            population=self.trainer.population,
        )
        report = postmortem.Report(
            run=self.run.name,
            boot=self.server.boot,
            reason=end.reason,
            exit_code=end.exit_code,
            error=end.error,
            at=time.time_ns() // 1000,
            round=self.round,
            epoch=self.epoch,
        )
        path = postmortem.write(subject, report, end.cause)
        if path is not None:
            self.server.emitter.emit(PostmortemWritten(path=str(path), reason=end.reason))

    def _train(self) -> _End:
        try:
            return self._train_to_end()
        except _Interrupted as interrupted:
            return _End("interrupted", INTERRUPTED, cause=interrupted)

    def _train_to_end(self) -> _End:
        try:
            self.trainer.run(self.observer)
        except StopRun as stop:
            if stop.checkpoint:
                self.operator.save_or_say(f"stop: {stop.reason}")
            self.leader.stop()
            return _End(stop.reason)
        except WireFailed as wire:
            self.operator.save_or_say("the wire failed")
            self.leader.stop()
            return _End("the wire failed", FAILED, str(wire), wire)
        except RankLost as lost:
            return self._lost(lost)
        except PolicyDiverged as diverged:
            logger.error("%s", diverged)
            return _End("the policy diverged", FAILED, str(diverged), diverged)
        except Exception as error:
            if is_out_of_memory(error):
                logger.exception("out of memory on %s", self.device)
                return _End("out of memory", FAILED, str(error) or "the machine's memory is full", error)
            logger.exception("training failed")
            return _End("training failed", FAILED, f"{type(error).__name__}: {error}", error)
        self.leader.stop()
        return _End(self.operator.stops_after_round or f"{self.trainer.round} rounds are done")

    def _lost(self, lost: RankLost) -> _End:
        """What that rank held of the episode is gone; the newest checkpoint is not."""
        saved = self.checkpoints.all()
        newest = saved[-1].name if saved else None
        logger.error("%s; %s", lost, f"resume from {newest}" if newest else "there is no checkpoint yet")
        self.server.emitter.emit(RankLostEvent(error=str(lost), checkpoint=newest))
        return _End("a rank was lost", FAILED, str(lost), lost)

    def _heard(self, number: int) -> None:
        """In a thread of its own: who watches learns of the end while an operation still runs."""
        if number in ENDING and self._training:
            self.server.set_state("STOPPING", signal.Signals(number).name)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if not self._training:
            return  # closing takes seconds at most
        if self._signals > 1:
            raise _Interrupted
        self.operator.request_stop(signal.Signals(number).name)

    def _on_hangup(self, log: IO[str], notifier: Notifier) -> None:
        reopen(self.run.log, log)
        self.server.reload()
        notifier.reloaded()
        said = "SIGHUP: the log is opened anew, the keys are read anew"
        self.server.emitter.emit(LogLine(level="INFO", logger=__name__, message=said))

    def _announce(self) -> None:
        config, population = self.config, self.trainer.population
        self.server.emitter.emit(
            RunStarted(
                run=self.run.id,
                name=self.run.name,
                boot=self.server.boot,
                pid=os.getpid(),
                host=socket.gethostname(),
                version=__version__,
                torch=torch.__version__,
                device=str(self.device),
                task=config.task.dataset,
                policy=config.policy.kind,
                envs=config.envs.count,
                slots=population.slots,
                blueprints=list(config.seeds.blueprints),
                stages=[stage.name for stage in Stage],
                ops=[op.name for op in Op],
                heads=list(HEAD_NAMES),
                episode_epochs=config.episode_epochs,
                rounds=config.rounds,
                host_parameters=population.parameters_host,
                seed=config.seed,
                ranks=self.world.size,
                config=msgspec.to_builtins(config),
                execution=population.execution.told(),
                resumed_round=self.resumed_round,
            )
        )
        for key, (configured, value) in self.parameters.changed.items():
            self.server.emitter.emit(ParamChanged(key=key, old=configured, new=value, by="resume"))
        if not is_detached():
            print(f"run {self.run.name} ({self.run.id}) on {self.device}: {self.run.path}", file=sys.stderr)


_MAY_CHANGE = (
    "rounds", "device", "task.data_dir", "telemetry.", "profiler.", "checkpoint.", "journal.", "wire.",
    "envs.threads", "compile.", "cuda.",
)  # fmt: skip
"""Options that a resumed run may be given anew; the others shape what the checkpoint holds."""


def _require_same_shape(path: Path, saved: dict[str, Any], now: dict[str, Any], prefix: str = "") -> None:
    for key, value in now.items():
        name = prefix + key
        if name.startswith(_MAY_CHANGE):
            continue
        if isinstance(value, dict):
            _require_same_shape(path, saved.get(key, {}), value, name + ".")
        elif key in saved and saved[key] != json.loads(json.dumps(value)):
            raise CheckpointError(
                f"checkpoint {path.name} was made with {name} = {saved[key]}; it cannot go on with {value}"
            )
