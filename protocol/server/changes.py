"""Changes after which trouble may follow: parameters, resumes, commands, seed operations, a busy machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import EventSpec

from .emitter import Emitted

SUSPECT_EPOCHS = 48
"""Epochs for which a change of the whole run is suspected of what follows: two default episodes."""
SEED_EPOCHS = 4
"""Likewise an operation on a seed, of its env."""
BUSY_CPU_PERCENT = 85.0
"""Of the whole machine: from here on the others have a part in what is slow."""
MAX_CHANGES = 64
_NOT_OF_TRAINING = ("telemetry.", "checkpoint.", "profiler.", "journal.", "wire.")
_OF_TRAINING = frozenset({"seed.germinate", "seed.prune"})
_OF_MACHINE = frozenset({"telemetry.escalate", "profiler.start"})


class Change(NamedTuple):
    """Something that was changed, in words, with the command that takes it back."""

    ts: int
    """Microseconds."""
    clock: int
    """Epochs since the run began."""
    text: str
    undo: str
    of_run: bool
    """It concerns all envs."""
    of_machine: bool = False
    """It concerns what the machine does, and not the training."""


class Changes:
    """The newest changes; `suspect` chooses one of them."""

    def __init__(self) -> None:
        self._run: list[Change] = []
        """Of the run, the newest last."""
        self._seeds: dict[int, Change] = {}
        """The newest operation on a seed, by env."""
        self._sample: ev.SystemSample | None = None

    def observe(self, spec: EventSpec, events: Sequence[Emitted], clock: int) -> None:
        """Take in events of one type."""
        if spec.cls is ev.SystemSample:
            self._sample = cast(ev.SystemSample, events[-1].event)
        elif spec.cls in _HANDLERS:
            for item in events:
                _HANDLERS[spec.cls](self, item, clock)

    def suspect(self, group: str, env: int | None, clock: int) -> Change | None:
        """The last change before now that can have caused a signal; None where there is none."""
        if group == "disk":
            return None
        of_machine = group in ("machine", "memory")
        found = _newest([each for each in self._run if each.of_machine == of_machine], clock, SUSPECT_EPOCHS)
        if found is not None:
            return found
        if of_machine:
            return self._busy_machine(clock)
        return _newest([change for of, change in self._seeds.items() if of == env], clock, SEED_EPOCHS)

    def _busy_machine(self, clock: int) -> Change | None:
        sample = self._sample
        if sample is None or (sample.machine_cpu_percent or 0.0) < BUSY_CPU_PERCENT:
            return None
        machine, own = sample.machine_cpu_percent, sample.cpu_percent / (sample.machine_cores or sample.cores)
        text = f"the machine is busy: {machine:.0f} %, this run {own:.0f} %, load {sample.load1:.1f}"
        return Change(0, clock, text, "", of_run=False)

    def _add(self, change: Change) -> None:
        self._run = [*self._run[1 - MAX_CHANGES :], change]

    def _parameter(self, item: Emitted, clock: int) -> None:
        data = cast(ev.ParamChanged, item.event)
        if data.by == "resume":
            return
        author = _author(data.by, data.uid)
        self._add(
            Change(
                item.ns // 1000,
                clock,
                f"{data.key} {data.old:g} -> {data.new:g} by {author}",
                f"param.set key={data.key} value={data.old!r}",
                of_run=True,
                of_machine=data.key.startswith(_NOT_OF_TRAINING),
            )
        )

    def _command(self, item: Emitted, clock: int) -> None:
        data = cast(ev.CommandAccepted, item.event)
        if data.method not in _OF_TRAINING | _OF_MACHINE:
            return
        author = _author(data.client, data.uid)
        given = " ".join(f"{key}={value}" for key, value in data.params.items() if value is not None)
        text = f"{data.method} {given}".rstrip() + f" by {author}"
        env = data.params.get("env")
        of_machine, undo = data.method in _OF_MACHINE, self._undo(data)
        change = Change(item.ns // 1000, clock, text, undo, of_run=env is None, of_machine=of_machine)
        if data.method.startswith("seed.") and env is not None:
            self._seeds[env] = change
        else:
            self._add(change)

    def _undo(self, data: ev.CommandAccepted) -> str:
        params: Mapping[str, Any] = data.params
        match data.method:
            case "seed.germinate":
                return f"seed.prune env={params.get('env')} slot={params.get('slot')}"
            case "telemetry.escalate":
                return f"op.cancel op={data.id}"
            case "profiler.start":
                return "profiler.stop"
        return ""

    def _seed(self, item: Emitted, clock: int) -> None:
        data = cast(ev.SeedStage, item.event)
        if item.env is None or data.by not in ("policy", "auto"):
            return
        by = "the policy" if data.by == "policy" else "its course"
        blueprint = f" ({data.blueprint})" if data.blueprint else ""
        text = f"env{item.env:02d}.{data.slot}{blueprint} {data.from_stage} -> {data.to_stage} by {by}"
        undo = "" if data.to_stage == "PRUNED" else f"seed.prune env={item.env} slot={data.slot}"
        self._seeds[item.env] = Change(item.ns // 1000, clock, text, undo, of_run=False)

    def _started(self, item: Emitted, clock: int) -> None:
        data = cast(ev.RunStarted, item.event)
        if data.resumed_round is not None:
            text = f"resumed after round {data.resumed_round}"
            self._add(Change(item.ns // 1000, clock, text, "", of_run=True))

    def _round(self, item: Emitted, clock: int) -> None:  # noqa: ARG002
        self._seeds.clear()  # fresh hosts


_HANDLERS = {
    ev.ParamChanged: Changes._parameter,
    ev.CommandAccepted: Changes._command,
    ev.SeedStage: Changes._seed,
    ev.RunStarted: Changes._started,
    ev.RoundStarted: Changes._round,
}


def _newest(changes: Sequence[Change], clock: int, epochs: int) -> Change | None:
    return next((each for each in reversed(changes) if clock - each.clock <= epochs), None)


def _author(client: str, uid: int | None) -> str:
    """`esper-tui, uid 1000`: the client without its version."""
    name = client.partition("/")[0]
    return name if uid is None else f"{name}, uid {uid}"
