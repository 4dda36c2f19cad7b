"""The event that a boot of a training begins with."""

from __future__ import annotations

import os
import socket

import msgspec
import torch

from esper_overwatch.protocol.messages.events import RunStarted
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op, Stage
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.loop import Trainer


def first_event(
    run: RunFolder,
    boot: str,
    trainer: Trainer,
    *,
    config: Config,
    device: torch.device,
    ranks: int,
    tokens_per_character: float | None,
    resumed_round: int | None,
) -> RunStarted:
    """Everything that a viewer needs to name columns and codes; see `RunStarted` for what each is."""
    population = trainer.population
    return RunStarted(
        run=run.id,
        name=run.name,
        boot=boot,
        pid=os.getpid(),
        host=socket.gethostname(),
        version=__version__,
        torch=torch.__version__,
        device=str(device),
        task=config.task.label,
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
        tokens_per_character=tokens_per_character,
        seed=config.seed,
        ranks=ranks,
        config=msgspec.to_builtins(config),
        execution=population.execution.to_dict(),
        resumed_round=resumed_round,
    )
