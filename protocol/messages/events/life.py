"""Stream `life`: what became of the run, its rounds, seeds and checkpoints. Never dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.protocol.messages.vocabulary import Initiator, Level, RunKindName

from .registry import event


@event("run.started", "life")
@dataclass(kw_only=True)
class RunStarted:
    """First event of a boot: everything a viewer needs to name columns and codes."""

    run: str
    name: str
    boot: str
    pid: int
    host: str
    version: str
    torch: str
    device: str
    task: str
    policy: str
    envs: int
    slots: list[str]
    blueprints: list[str]
    stages: list[str]
    """Stage names; `EpochFinished.stage` holds indices into it."""
    ops: list[str]
    heads: list[str]
    episode_epochs: int
    rounds: int
    """Rounds asked for; 0 = until stopped."""
    host_parameters: int
    seed: int
    ranks: int = 1
    """Processes that train the run; each has an equal share of the envs, in order."""
    config: dict[str, Any]
    execution: dict[str, Any] = field(default_factory=dict)
    """What was decided at start: `group_size` (hosts per stacked program), `convolution`, `amp`."""
    resumed_round: int | None = None
    """The last finished round of the checkpoint this boot goes on from."""
    tokens_per_character: float | None = None
    """Of a text to validate on: a loss times this is the loss per character, whatever the tokens."""
    kind: RunKindName = "training"
    """`published`: by a loop of its user's own; then what a training has is empty or 0."""
    tags: list[str] = field(default_factory=list)
    notes: str = ""


@event("run.config", "life", keep=1)
@dataclass(kw_only=True)
class RunConfigured:
    """A loop has changed its configuration after the start: the whole of it, in place of `run.started`'s."""

    config: dict[str, Any]


@event("run.rewound", "life")
@dataclass(kw_only=True)
class RunRewound:
    """A boot goes back to a checkpoint: earlier boots' events of what it plays again are void.

    These are, up to the numbers `last`, all of later rounds than `round`, and of that round what came after
    `epoch` epochs and their decisions (all of it where `epoch` is 0), `seed.ended` and the like included.
    """

    round: int
    epoch: int
    from_round: int
    """The clock of the newest event before this boot."""
    from_epoch: int
    last: dict[str, int]
    """The newest number before this boot, per stream."""

    def voids(self, event_round: int, event_epoch: int, *, is_end: bool = False) -> bool:
        """True if earlier boots' events of this clock are void; with `is_end` those of an episode's end."""
        if event_round != self.round:
            return event_round > self.round
        return is_end or not self.epoch or event_epoch > self.epoch


@event("run.state", "life")
@dataclass(kw_only=True)
class RunStateChanged:
    """The trainer entered a state (see `commands.RunState`)."""

    state: str
    reason: str = ""


FINISHED = "finished"
"""Why a published run ends whose loop is over, as `run.stopped` says it."""
STOP_BY = "stop by "
"""Before the sender of the command, where one ended the run."""


def reason_of_done(rounds: int) -> str:
    """Why a training stops that has trained all its rounds, as `run.stopped` says it."""
    return f"{rounds} rounds are done"


@event("run.stopped", "life")
@dataclass(kw_only=True)
class RunStopped:
    """Last event of a boot that ended in order, but for alerts of that end."""

    reason: str
    exit_code: int
    rounds: int
    error: str | None = None

    @property
    def final_state(self) -> str:
        """The word for a run that ended so, wherever one is shown: FAILED, COMPLETED or STOPPED."""
        if self.exit_code:
            return "FAILED"
        return "COMPLETED" if self.done or self.reason == FINISHED else "STOPPED"

    @property
    def stopped_by(self) -> str:
        """Who or what stopped it, as `uid 1000 (esper-daemon/0.2.0)` or `SIGTERM`; empty of another end."""
        return self.reason.removeprefix(STOP_BY) if self.final_state == "STOPPED" else ""

    @property
    def done(self) -> int:
        """Rounds of a training that has trained all it was to, so that resumed it needs more; else 0."""
        return self.rounds if self.reason == reason_of_done(self.rounds) else 0


@event("postmortem.written", "life")
@dataclass(kw_only=True)
class PostmortemWritten:
    """What an abnormal end left behind is in this folder; `esper-daemon doctor` reads it."""

    path: str
    reason: str


@event("round.started", "life")
@dataclass(kw_only=True)
class RoundStarted:
    """N freshly built hosts begin an episode."""

    rounds: int


@event("round.finished", "life", keep=400)
@dataclass(kw_only=True)
class RoundFinished:
    """One round: N episodes in lockstep and one PPO update."""

    seconds: float
    """Of the round, without pauses; where it was resumed in its middle, those of this boot."""
    env_epochs_per_second: float
    """Of the same seconds; 0 where a resumed boot had no epoch left."""
    return_mean: float
    return_p10: float
    return_p50: float
    return_p90: float
    accuracy_mean: float
    """Mean final validation accuracy over envs."""
    accuracy_best: float
    best_env: int
    test_accuracy_mean: float | None = None
    test_accuracy_best: float | None = None
    parameters_mean: float = 0.0
    """Mean parameters of host and live seeds at the end."""
    final_accuracy: list[float] = field(default_factory=list)
    final_return: list[float] = field(default_factory=list)
    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds per phase between the last epoch and this event: update, test, shapley."""
    device_syncs: int | None = None
    """Times in the round that the host waited for a GPU: one an epoch and an update by design. Counted in the
    second round of a boot and in each 16th after it."""
    graph_breaks: int = 0
    """Places in the round where torch.compile gave up on a function."""
    recompiles: int = 0
    """Programs compiled again in the round since an input did not fit."""
    allocator_retries: int | None = None
    """Times in the round that a GPU's memory was full until unused memory was given back."""
    reward_components: dict[str, float] = field(default_factory=dict)
    """Mean over envs of what each component of the reward paid in the episode; they sum to `return_mean`.
    Empty where a resumed boot does not know the beginning."""


@event("episode.finished", "life", keep=1, key=("env",))
@dataclass(kw_only=True)
class EpisodeFinished:
    """What became of one env's episode; ctx.env says whose. Before `round.finished`, one for each env."""

    total_return: float
    """Sum of the episode's rewards."""
    reward_components: dict[str, float]
    """The same by component, which sum to it; empty where a resumed boot does not know the beginning."""
    accuracy: float
    """On the validation split after the last epoch; where that was rolled back, of the host that failed."""
    parameters: int
    """Of the host and its live seeds at the end; with `reward.only_fossilized` of the fossilised ones."""
    added_parameters: int
    """Those of the seeds among them."""
    seeds: dict[str, int]
    """Seeds planted in the episode by where they ended: FOSSILIZED, PRUNED, DORMANT (a rollback undid it), or
    the stage in which the end found it."""
    rollbacks: int
    """Times that the governor put the host back."""
    test_accuracy: float | None = None
    """On the test images, of the host as it is at the end; null where it was not measured."""
    task: str | None = None
    """What the env learnt, where it drew a task of a mixture."""
    instance: int | None = None
    """Which instance of it: the seed that a generated task was made from."""


@event("evaluation.finished", "life", keep=100, key=("policy",), subjects=8)
@dataclass(kw_only=True)
class EvaluationFinished:
    """A policy was played for an episode on the held-out hosts, which are the same for all policies.

    After `round.finished` of the round; ctx.round says which. Figures are means over the hosts.
    """

    policy: str
    """Kind of the run's policy, or of the rival."""
    is_rival: bool
    """Not what the run trains; played once, since nothing changes it."""
    hosts: int
    seconds: float
    return_mean: float
    accuracy_mean: float
    """On the validation split after the last epoch."""
    test_accuracy_mean: float
    added_parameters_mean: float
    """Those of the seeds that the hosts hold at the end."""
    fossilized_mean: float
    """Seeds of a host that are for good."""
    return_components: dict[str, float]
    """The return by component, which sum to it."""
    op_fraction: dict[str, float]
    """Share of each op among the actions."""
    tasks: dict[str, dict[str, float]]
    """By task: `return`, `accuracy`, `test_accuracy`, `added_parameters`, `fossilized`."""
    leads: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By rival: `mean` of the differences of return, host by host, and `low` to `high`, its 95 % interval;
    null with one host. Empty for a rival."""
    is_best: bool = False
    """The run's policy was never better; `best.pt` is its checkpoint."""


@event("seed.stage", "life", keep=2, key=("env", "slot"))
@dataclass(kw_only=True)
class SeedStage:
    """A seed moved along its life; ctx.env says whose. Fields that may be null may be missing instead."""

    slot: str
    from_stage: str
    to_stage: str
    blueprint: str | None
    alpha: float
    by: Initiator
    parameters: int = 0
    contribution: float | None = None
    seed: str | None = None
    """Id of the seed, the same in all events of its life."""
    action: str | None = None
    """Id of the policy's action that caused it (`EpochFinished.action`)."""
    command: str | None = None
    """Id of the operator's command that caused it."""


@event("seed.gate", "life", keep=1, key=("env", "slot"))
@dataclass(kw_only=True)
class SeedGate:
    """A gate was evaluated: an action needed it, or its verdict is another than before.

    Every evaluation, repeated ones as well, is in `EpochFinished.gates_asked`. Fields that may be null may be
    missing instead.
    """

    slot: str
    gate: str
    passed: bool
    checks: dict[str, bool]
    seed: str | None = None
    action: str | None = None
    """Id of the policy's action that needed to pass."""
    command: str | None = None
    """Id of the operator's command that needed to pass."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that failed; `refused` where it names none and yet let nothing through."""
        found = tuple(check for check, passed in self.checks.items() if not passed)
        return found or (() if self.passed else ("refused",))


@event("seed.ended", "life")
@dataclass(kw_only=True)
class SeedEnded:
    """What became of a seed; ctx.env says whose.

    One for each seed planted in an episode, before its `episode.finished`: until then a rollback can bring a
    pruned seed back or undo a fossilised one. Counts of seeds are sums of these.
    """

    seed: str
    """Its id, as in `seed.stage`."""
    slot: str
    blueprint: str | None
    """Null where a checkpoint of 0.2.0 did not say it."""
    parameters: int
    born: int
    """Epochs finished when it was planted."""
    ended: int
    """Epochs finished when it was fossilised, pruned or undone, or when the episode ended."""
    how: str
    """FOSSILIZED, PRUNED, DORMANT (a rollback undid it), or the stage in which the episode's end found it."""
    contribution: float | None = None
    """The newest measured, a share of accuracy; of a fossilised seed until the episode's end."""
    gates_failed: dict[str, list[str]] = field(default_factory=dict)
    """Gates whose newest verdict was no: the checks that failed, by gate."""


@event("governor.rollback", "life", keep=1, key=("env",))
@dataclass(kw_only=True)
class GovernorRollback:
    """A sick host was put back to its last good snapshot."""

    reason: str
    """`nan`, `collapse` (up to 0.2.0 `lobotomy`) or `divergence`."""
    loss: float
    restored_epoch: int
    penalty: float

    @property
    def cause(self) -> str:
        """The reason in words, wherever a person reads it."""
        return _ROLLBACK_CAUSES.get(self.reason, self.reason)


_ROLLBACK_CAUSES = {
    "nan": "loss not finite",
    "collapse": "collapsed to chance",
    "lobotomy": "collapsed to chance",
    "divergence": "loss diverged",
}


@event("governor.veto", "life", keep=1, key=("env", "slot"))
@dataclass(kw_only=True)
class GovernorVeto:
    """The governor forbids actions that the gates allow, since they would undo the host; they are masked.

    Told when it begins; it ends by itself.
    """

    slot: str
    ops: list[str]
    """PRUNE and such."""
    reason: str
    """`undone`: a rollback has just undone the same; `forgets`: the host would be back at a guess."""


@event("checkpoint.saved", "life")
@dataclass(kw_only=True)
class CheckpointSaved:
    """A checkpoint is on disk, complete."""

    path: str
    bytes: int
    seconds: float
    reason: str
    command: str | None = None


@event("checkpoint.failed", "life")
@dataclass(kw_only=True)
class CheckpointFailed:
    """A checkpoint could not be written; the one before it is intact."""

    path: str
    error: str
    reason: str
    command: str | None = None


@event("telemetry.level", "life", keep=20)
@dataclass(kw_only=True)
class TelemetryLevel:
    """What is collected changed; with `epochs` it falls back by itself after so many."""

    level: Level
    previous: Level
    reason: str
    epochs: int | None = None
    env: int | None = None
    command: str | None = None


@event("telemetry.stride", "life", keep=20)
@dataclass(kw_only=True)
class TelemetryStride:
    """Drift, and layers at level DEBUG, are collected every `new` epochs, to keep within a budget."""

    old: int
    new: int
    share: float
    """Of the wall time, that collecting took at the old stride."""
    budget: float


@event("telemetry.lost", "life", key=("stream",))
@dataclass(kw_only=True)
class TelemetryLost:
    """Events refused because a queue was full: the only true loss, and it is counted."""

    stream: str
    count: int
    from_ts: int
    to_ts: int


@event("journal.removed", "life", keep=4)
@dataclass(kw_only=True)
class JournalRemoved:
    """The oldest closed segment went, to keep the journal within `journal.keep_bytes`."""

    segment: str
    bytes: int
    """Freed on the disk."""
    from_ts: int
    to_ts: int
    last: dict[str, int]
    """The newest number removed, per stream; what follows it is held."""


@event("profiler.started", "life")
@dataclass(kw_only=True)
class ProfilerStarted:
    epochs: int
    command: str | None = None


@event("profiler.finished", "life")
@dataclass(kw_only=True)
class ProfilerFinished:
    """The trace is on disk, in Chrome's format and by the name that TensorBoard's plugin looks for."""

    path: str
    bytes: int
    epochs: int
    top: list[dict[str, Any]]
    """Top operators by self time: name, calls, self_us, share."""
    gpu_utilisation: float | None = None
    """Share of the window in which the GPU was at work."""
    kernels: int | None = None
    """Launched on the GPU."""
    allocator_seconds: float | None = None
    """In which threads asked for memory."""
    python_share: float | None = None
    """Share of the window in which no thread ran an operator: Python, or waiting."""
    command: str | None = None
    error: str | None = None


@event("rank.lost", "life", keep=4)
@dataclass(kw_only=True)
class RankLost:
    """A process of a run on several ranks is gone or hangs; the run ends."""

    error: str
    """Which, and how it was noticed."""
    checkpoint: str | None
    """The newest one, to resume from."""
