"""From events to tables: one for rounds, epochs, seeds and so on, and one for a published run's scalars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from protocol.codec.json_lines import Event
from protocol.journal.command_log import CommandLog, CommandRecord
from protocol.journal.seed_lives import Lives
from protocol.messages.events import (
    Anomaly,
    CommandAccepted,
    CommandDone,
    CommandFailed,
    CommandRefused,
    EpochFinished,
    RoundFinished,
    RunStarted,
    Scalars,
    SeedStage,
)
from protocol.messages.vocabulary import ALPHA_SPEEDS, ALPHA_TARGETS, GATE_OF_OP, TEMPOS, Curve, Style

Columns = dict[str, str]
"""Name → SQL type."""
Row = tuple[Any, ...]

_PLACE: Columns = {"round": "BIGINT", "epoch": "BIGINT", "env": "BIGINT"}
_SQL = {"float": "DOUBLE", "int": "BIGINT", "bool": "BOOLEAN", "str": "VARCHAR"}


def _scalars(cls: type) -> Columns:
    """The fields of an event that are single values."""
    kinds = {f.name: str(f.type).removesuffix(" | None") for f in fields(cls)}
    return {name: _SQL[kind] for name, kind in kinds.items() if kind in _SQL}


_GATE_OF_OP = {op.name: gate for op, gate in GATE_OF_OP.items()}
_ROUND = _scalars(RoundFinished)
_PER_ENV: Columns = {
    "train_loss": "DOUBLE",
    "train_accuracy": "DOUBLE",
    "val_loss": "DOUBLE",
    "val_accuracy": "DOUBLE",
    "reward": "DOUBLE",
    "episode_return": "DOUBLE",
    "host_grad_norm": "DOUBLE",
    "host_health": "DOUBLE",
    "parameters": "BIGINT",
    "loss_scale": "DOUBLE",
    "skipped_steps": "BIGINT",
}
"""Columns of `EpochFinished` with one value per env; those that only some runs have are empty elsewhere."""
COLUMNS: dict[str, Columns] = {
    "rounds": {"ts": "TIMESTAMP", "boot": "VARCHAR", "round": "BIGINT", **_ROUND},
    "epochs": {"ts": "TIMESTAMP", **_PLACE, "level": "VARCHAR", "seconds": "DOUBLE", **_PER_ENV},
    "seeds": {
        "env": "BIGINT",
        "slot": "VARCHAR",
        "blueprint": "VARCHAR",
        "round": "BIGINT",
        "germinated_epoch": "BIGINT",
        "end_epoch": "BIGINT",
        "end_stage": "VARCHAR",
        "contribution": "DOUBLE",
        "parameters": "BIGINT",
        "seed": "VARCHAR",
    },
    "stages": {
        "ts": "TIMESTAMP",
        **_PLACE,
        "slot": "VARCHAR",
        "seed": "VARCHAR",
        "from_stage": "VARCHAR",
        "to_stage": "VARCHAR",
        "actor": "VARCHAR",
        "action": "VARCHAR",
        "blueprint": "VARCHAR",
        "alpha": "DOUBLE",
        "contribution": "DOUBLE",
    },
    "gates": {**_PLACE, "slot": "VARCHAR", "gate": "VARCHAR", "passed": "BOOLEAN", "action": "VARCHAR"},
    "decisions": {
        **_PLACE,
        "op": "VARCHAR",
        "slot": "VARCHAR",
        "action": "VARCHAR",
        "executed": "BOOLEAN",
        "blueprint": "VARCHAR",
        "style": "VARCHAR",
        "tempo": "BIGINT",
        "alpha_target": "DOUBLE",
        "alpha_speed": "BIGINT",
        "alpha_curve": "VARCHAR",
    },
    "rewards": {**_PLACE, "reward": "DOUBLE"},
    "anomalies": {
        "ts": "TIMESTAMP",
        "boot": "VARCHAR",
        "round": "BIGINT",
        "epoch": "BIGINT",
        **{name: kind for name, kind in _scalars(Anomaly).items() if name != "since"},
        "severity": "VARCHAR",
        "since": "TIMESTAMP",
    },
    "scalars": {
        "ts": "TIMESTAMP",
        "boot": "VARCHAR",
        "step": "BIGINT",
        "name": "VARCHAR",
        "value": "DOUBLE",
    },
    "commands": {
        "ts": "TIMESTAMP",
        "id": "VARCHAR",
        "method": "VARCHAR",
        "client": "VARCHAR",
        "uid": "BIGINT",
        "pid": "BIGINT",
        "params": "VARCHAR",
        "reason": "VARCHAR",
        "outcome": "VARCHAR",
        "seconds": "DOUBLE",
        "message": "VARCHAR",
    },
}
"""Of every view; `rewards` has a column for each component of the run's reward besides."""


class Tables:
    """Rows gathered from the events of one journal.

    Args:
        events: those that count, in order; see `timeline`.

    Attributes:
        columns: of each table.
        rows: of each table.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.columns = {name: dict(columns) for name, columns in COLUMNS.items()}
        self.rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
        self._started: RunStarted | None = None
        self._lives = Lives()
        self._commands = CommandLog()
        self._components: list[str] = []
        take: dict[type, Callable[[Event], None]] = {
            RunStarted: self._run_started,
            RoundFinished: self._round_finished,
            EpochFinished: self._epoch,
            SeedStage: self._stage,
            Anomaly: self._anomaly,
            Scalars: self._scalars,
            CommandAccepted: self._command,
            CommandRefused: self._command,
            CommandDone: self._command,
            CommandFailed: self._command,
        }
        for event in events:
            if type(event.data) in take:
                take[type(event.data)](event)
        self._complete()

    def _complete(self) -> None:
        width = 4 + len(self._components)
        self.columns["rewards"] |= dict.fromkeys(self._components, "DOUBLE")
        self.rows["rewards"] = [row + (None,) * (width - len(row)) for row in self.rows["rewards"]]
        self.rows["seeds"] = [
            tuple(getattr(life, name) for name in self.columns["seeds"]) for life in self._lives.all
        ]
        records = sorted(self._commands.records(), key=lambda record: record.number)
        self.rows["commands"] = [_command_row(record) for record in records]

    @property
    def _boot(self) -> str | None:
        return self._started.boot if self._started else None

    def _run_started(self, event: Event) -> None:
        self._started = event.data

    def _round_finished(self, event: Event) -> None:
        data = event.data
        self._lives.round_finished(event.ctx.round, event.ctx.epoch)
        values = (getattr(data, name) for name in _ROUND)
        self.rows["rounds"].append((_time(event.ts), self._boot, event.ctx.round, *values))

    def _epoch(self, event: Event) -> None:
        data: EpochFinished = event.data
        started, ctx, at = self._started, event.ctx, _time(event.ts)
        if started is None:
            return
        self._lives.contributions(event.ctx.round, data.contribution, started.slots)
        self._components += [name for name in data.reward_components if name not in self._components]
        columns = [getattr(data, name) for name in _PER_ENV]
        components = [data.reward_components.get(name) for name in self._components]
        choices = _choices(data, started.blueprints)
        for env in range(len(data.op)):
            place = (ctx.round, ctx.epoch, env)
            slot = data.action_slot[env]
            self.rows["epochs"].append(
                (at, *place, ctx.level, data.seconds, *(c[env] if c else None for c in columns))
            )
            self.rows["decisions"].append(
                (
                    *place,
                    started.ops[data.op[env]],
                    None if slot is None else started.slots[slot],
                    data.action[env] if data.action else None,
                    data.executed[env] if data.executed else None,
                    *choices[env],
                )
            )
            self._gates(data, env, place, started)
            self.rows["rewards"].append(
                (*place, data.reward[env], *(c[env] if c else None for c in components))
            )

    def _gates(self, data: EpochFinished, env: int, place: Row, started: RunStarted) -> None:
        """A row for each gate that a slot of the env was asked at."""
        if not data.gates_asked:
            return
        needed = _GATE_OF_OP.get(started.ops[data.op[env]]), data.action_slot[env]
        for slot, (asked, passed) in enumerate(
            zip(data.gates_asked[env], data.gates_passed[env], strict=True)
        ):
            for number in range(asked.bit_length()):
                if asked >> number & 1:
                    gate = f"G{number}"
                    action = data.action[env] if needed == (gate, slot) else None
                    self.rows["gates"].append(
                        (*place, started.slots[slot], gate, bool(passed >> number & 1), action)
                    )

    def _stage(self, event: Event) -> None:
        self._lives.stage(event)
        place = (_time(event.ts), event.ctx.round, event.ctx.epoch, event.ctx.env)
        told = list(self.columns["stages"])[len(place) :]
        names = ("by" if name == "actor" else name for name in told)  # BY is a word of SQL
        self.rows["stages"].append((*place, *(getattr(event.data, name) for name in names)))

    def _anomaly(self, event: Event) -> None:
        data: Anomaly = event.data
        place = {
            "ts": _time(event.ts),
            "boot": self._boot,
            "round": event.ctx.round,
            "epoch": event.ctx.epoch,
        }
        values = vars(data) | place | {"since": _time(data.since)}
        self.rows["anomalies"].append(tuple(values[name] for name in self.columns["anomalies"]))

    def _scalars(self, event: Event) -> None:
        data: Scalars = event.data
        place = (_time(event.ts), self._boot, data.step)
        self.rows["scalars"] += [(*place, name, value) for name, value in data.values.items()]

    def _command(self, event: Event) -> None:
        self._commands.fold(event.data, ts=event.ts)


def _choices(data: EpochFinished, blueprints: Sequence[str]) -> list[Row]:
    """For each env what the heads beside op and slot chose, as what it means; None where it had no effect."""
    columns = [
        [
            None if choice is None else meaning[choice]
            for choice in data.heads.get(head, [None] * len(data.op))
        ]
        for head, meaning in (
            ("blueprint", blueprints),
            ("style", [style.name for style in Style]),
            ("tempo", TEMPOS),
            ("alpha_target", ALPHA_TARGETS),
            ("alpha_speed", ALPHA_SPEEDS),
            ("alpha_curve", [curve.name for curve in Curve]),
        )
    ]
    return list(zip(*columns, strict=True))


def _command_row(record: CommandRecord) -> Row:
    """One row of `commands`, in the order of its columns."""
    outcomes = {"waiting": "open", "running": "open", "cancelled": "failed"}
    return (
        _time(record.ts),
        record.id,
        record.method,
        record.client,
        record.uid,
        record.pid,
        None if record.params is None else json.dumps(record.params),
        record.reason,
        outcomes.get(record.state, record.state),
        record.seconds,
        None if record.error is None else record.error["message"],
    )


def _time(us: int) -> datetime:
    """UTC, without a zone: what SQL's TIMESTAMP is."""
    return datetime.fromtimestamp(us / 1e6, tz=UTC).replace(tzinfo=None)
