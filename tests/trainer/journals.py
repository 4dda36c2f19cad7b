"""Runs that never were: a folder with a journal of given events, written by the real codec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.journal.writer import DEFAULT_LIMITS, Journal, JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context, spec_of
from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.protocol.runs import RunFolder
from tests.batches import batch_of
from tests.protocol.values import an_event

BEGIN = 1_780_000_000_000_000
"""Time of the first event, microseconds; each later one comes a second after."""
SLOTS, OPS = ["r0c0", "r0c1"], ["WAIT", "GERMINATE", "PRUNE"]
Told = tuple[object, Context]


def write_run(
    home: Path, name: str, told: Iterable[Told], limits: JournalLimits = DEFAULT_LIMITS
) -> RunFolder:
    """A run that is still held by this process; `release` lets it die."""
    run = RunFolder.claim(name, home=home)
    journal = Journal(run.events, limits)
    seq: dict[str, int] = dict(journal.last)
    for n, (event, ctx) in enumerate(told):
        stream, ts = spec_of(type(event)).stream, BEGIN + n * 1_000_000
        seq[stream] = seq.get(stream, 0) + 1
        journal.append([batch_of(seq[stream], ts, ctx, event)])
    journal.close()
    return run


def at(round_: int, epoch: int, env: int | None = None) -> Context:
    return Context(round=round_, epoch=epoch, env=env)


def started(boot: str, resumed_round: int | None = None, *, rounds: int = 0) -> Told:
    event = an_event(
        ev.RunStarted,
        boot=boot,
        version="0",
        torch="2",
        envs=2,
        slots=SLOTS,
        blueprints=["norm", "attention"],
        stages=[stage.name for stage in Stage],
        ops=OPS,
        heads=["op", "slot"],
        episode_epochs=3,
        rounds=rounds,
        resumed_round=resumed_round,
    )
    return event, at(0, 0)


def round_started(round_: int) -> Told:
    return ev.RoundStarted(rounds=0), at(round_, 0)


def epoch(round_: int, epoch_: int, accuracy: float = 0.5, **changes: Any) -> Told:
    """Two envs of two slots: env 0 waits, env 1 germinates in its second slot."""
    values: dict[str, Any] = {
        "seconds": 0.5,
        "train_loss": [1.0, 2.0],
        "train_accuracy": [0.5, 0.6],
        "val_loss": [1.0, None],
        "val_accuracy": [accuracy, accuracy / 2],
        "reward": [0.25, 0.5],
        "episode_return": [1.0, 2.0],
        "op": [0, 1],
        "action_slot": [None, 1],
        "host_grad_norm": [1.0, float("nan")],
        "host_health": [1.0, 1.0],
        "stage": [[0, 0]] * 2,
        "epochs_in_stage": [[0, 0]] * 2,
        "alpha": [[0.0, 0.0]] * 2,
        "blueprint": [[None, None]] * 2,
        "contribution": [[None, None]] * 2,
        "seed_grad_norm": [[None, None]] * 2,
        "seed_health": [[None, None]] * 2,
        "parameters": [10, 20],
        "reward_components": {"gain": [0.5, 0.75], "rent": [-0.25, -0.25]},
    }
    return ev.EpochFinished(**(values | changes)), at(round_, epoch_)


def round_finished(round_: int, epoch_: int = 3, accuracy: float = 0.5, germinated: int = 0) -> Told:
    best = {"accuracy_mean": accuracy, "accuracy_best": accuracy, "best_env": 0}
    event = an_event(ev.RoundFinished, seconds=1.5, germinated=germinated, **best)
    return event, at(round_, epoch_)


def stage(where: Context, slot: str, before: str, after: str, **changes: Any) -> Told:
    """A stage of the slot's only seed in the round, where `seed` names no other."""
    values: dict[str, Any] = {"blueprint": "norm", "alpha": 0.0, "by": "policy", "parameters": 17}
    values["seed"] = f"r{where.round}n{where.env}{slot}"
    return ev.SeedStage(slot=slot, from_stage=before, to_stage=after, **(values | changes)), where


def ended(where: Context, slot: str, born: int, end: int, how: str, **changes: Any) -> Told:
    """The end of the slot's only seed in the round, where `seed` names no other."""
    values: dict[str, Any] = {
        "blueprint": "norm",
        "parameters": 17,
        "seed": f"r{where.round}n{where.env}{slot}",
    }
    return ev.SeedEnded(slot=slot, born=born, ended=end, how=how, **(values | changes)), where


def rewound(round_: int, epoch_: int, told: Sequence[Told]) -> Told:
    """A boot goes back to a checkpoint, after these events and the boot's first."""
    last = Counter(spec_of(type(event)).stream for event, _ in told)
    ctx = told[-1][1]
    event = ev.RunRewound(
        round=round_, epoch=epoch_, from_round=ctx.round, from_epoch=ctx.epoch, last=dict(last)
    )
    return event, at(round_, epoch_)
