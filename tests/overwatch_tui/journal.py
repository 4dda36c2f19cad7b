"""A run that never was: a realistic stream of events, encoded and decoded by the real codec.

Deterministic in its seed. What happens in it: seeds live through all stages, env 07 drifts from the middle
on and explodes, env 13 is put back, env 02 stalls, a learning rate is set and the policy breaks, commands are
given. The incidents are the daemon's own of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.codec.json_lines import Event, decode_line, encode_event
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context, spec_of
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, UPDATE_SIGNALS, value_collapse_limits
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, STREAMS, Level, Op, Stage
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.incidents import IncidentKeeper

START = 1_760_000_000_000_000
"""First event, microseconds."""
STAGES, OPS = [stage.name for stage in Stage], [op.name for op in Op]
BLUEPRINTS = ["norm", "attention", "depthwise", "conv_light"]
PARAMETERS = {"norm": 16, "attention": 280, "depthwise": 150, "conv_light": 584}
EPOCH_US = 600_000
UPDATE_LIMITS = {name: [THRESHOLDS[signal].warning] for name, signal in UPDATE_SIGNALS.items()}
DRIFT_LIMITS = dict.fromkeys(("env.norm_drift", "seed.norm_drift", "env.health_drift"), 0.5)
POLICY_DRIFT_LIMITS = {"policy.norm_drift": 0.5, "head.norm_drift": 0.9, "policy.health_drift": 0.5}


@dataclass
class Seed:
    """One slot's occupant."""

    stage: int = 0
    epochs: int = 0
    alpha: float = 0.0
    blueprint: int | None = None
    worth: float = 0.0
    end: ev.SeedEnded | None = None


@dataclass
class Run:
    """Makes events in the order of a real run."""

    envs: int = 16
    slots: int = 3
    episode_epochs: int = 24
    rounds: int = 6
    seed: int = 7
    boot: str = "b1"
    begin: int = START
    epoch_us: int = EPOCH_US
    has_incidents: bool | None = None
    """True: what goes wrong does so in the last rounds; None: from 16 envs on, in rounds 3 to 6."""
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.ts = self.begin
        self.seq = dict.fromkeys(STREAMS, 0)
        self.ctx = Context()
        self.level: Level = "NORMAL"
        self.grid: list[list[Seed]] = []
        self.ends: list[tuple[int, ev.SeedEnded]] = []
        self.ema = [1.0] * self.envs
        self.since: dict[tuple[str, str], int] = {}
        self.later = 6 - self.rounds if self.has_incidents else 0
        self.told: list[Any] = []
        self.keeper = IncidentKeeper(self.told.append, self.boot)

    def emit(self, data: Any, *, env: int | None = None, after: int = 0) -> None:
        """Stamp and encode an event as the daemon does, and the incidents that it makes."""
        self.ts += after
        spec = spec_of(type(data))
        self.seq[spec.stream] += 1
        ctx = Context(round=self.ctx.round, epoch=self.ctx.epoch, level=self.level, env=env)
        self.lines.append(encode_event(self.seq[spec.stream], self.ts, ctx, data))
        self.keeper.observe(spec, [Emitted(ns=self.ts * 1000, event=data, env=env, ctx=ctx)])
        while self.told:
            self.emit(self.told.pop(0))

    def make(self) -> list[bytes]:
        """The whole run."""
        self.emit(self.started())
        self.emit(ev.RunStateChanged(state="TRAINING", reason="started"))
        for number in range(1, self.rounds + 1):
            self.one_round(number)
        return self.lines

    def started(self) -> ev.RunStarted:
        return ev.RunStarted(
            run="7f3a09c1",
            name="digits-7f3a",
            boot=self.boot,
            pid=4711,
            host="gpu3",
            version="0.1.0",
            torch="2.13.0",
            device="cpu",
            task="digits",
            policy="ppo",
            envs=self.envs,
            slots=[f"r0c{i}" for i in range(self.slots)],
            blueprints=BLUEPRINTS,
            stages=STAGES,
            ops=OPS,
            heads=list(HEAD_NAMES),
            episode_epochs=self.episode_epochs,
            rounds=400,
            host_parameters=274,
            seed=1,
            config={"seed": 1, "rounds": 400, "envs": {"count": self.envs}, "ppo": {"clip": 0.2}},
        )

    def one_round(self, number: int) -> None:
        self.ctx.round, self.ctx.epoch = number, 0
        self.grid = [[Seed() for _ in range(self.slots)] for _ in range(self.envs)]
        self.ends = []
        self.emit(ev.RoundStarted(rounds=400))
        for epoch in range(1, self.episode_epochs + 1):
            self.ctx.epoch = epoch
            self.ts += self.epoch_us
            self.emit(self.epoch())
            self.emit(self.drift(self.env_sources()))
            if epoch % 2 == 0:
                self.emit(self.system())
            self.incidents(number, epoch)
        self.emit(self.update(number), after=240_000)
        self.emit(self.drift(["policy", *(f"policy.{head}" for head in list(HEAD_NAMES)), "critic"]))
        for env, end in sorted(self.ends, key=lambda one: one[0]):
            end.ended = end.ended or self.episode_epochs
            self.emit(end, env=env)
        self.emit(self.finished(number))
        name = f"round-{number:06d}.pt"
        self.emit(
            ev.CheckpointSaved(
                path=f"/runs/digits-7f3a/checkpoints/{name}",
                bytes=412_000,
                seconds=0.02,
                reason="round",
            )
        )

    def epoch(self) -> ev.EpochFinished:
        ops, where = [], []
        for env in range(self.envs):
            op, slot = self.act(env)
            ops.append(op)
            where.append(slot)
        accuracy = [self.accuracy(env) for env in range(self.envs)]
        rolled = self.sick and (self.envs > 13 or bool(self.has_incidents))

        def columns(pick: Any) -> list[list[Any]]:
            return [[pick(seed) for seed in row] for row in self.grid]

        def running(seed: Seed, value: float) -> float | None:
            return value if 1 <= seed.stage <= 5 else None

        jitter = self.random.uniform
        chosen = [0.95 - 0.05 * (env % 16) for env in range(self.envs)]
        return ev.EpochFinished(
            seconds=self.epoch_us / 1e6,
            train_loss=[1.6 - a for a in accuracy],
            train_accuracy=[min(0.99, a + 0.02) for a in accuracy],
            val_loss=[1.7 - a for a in accuracy],
            val_accuracy=list(accuracy),
            reward=[jitter(-0.1, 0.4) for _ in accuracy],
            episode_return=[18 * a + jitter(-1, 1) - 4 for a in accuracy],
            op=ops,
            action_slot=where,
            probability=chosen,
            op_probability=[
                [share if i == op else (1 - share) * (i == (0 if op else 1)) for i in range(len(OPS))]
                for share, op in zip(chosen, ops, strict=True)
            ],
            value=[0.61 - a for a in accuracy],
            host_grad_norm=[
                None if rolled and env == self.who(13) else self.norm(env) for env in range(self.envs)
            ],
            host_health=[0.42 if env == self.who(7) and self.sick else 0.98 for env in range(self.envs)],
            stage=columns(lambda s: s.stage),
            epochs_in_stage=columns(lambda s: s.epochs),
            alpha=columns(lambda s: round(s.alpha, 2)),
            blueprint=columns(lambda s: s.blueprint),
            contribution=columns(lambda s: s.worth * s.alpha if s.stage in (3, 4, 5) else None),
            seed_grad_norm=columns(lambda s: running(s, abs(s.worth) * 12 + jitter(0.2, 1.5))),
            seed_health=columns(lambda s: running(s, jitter(0.85, 1.0))),
            parameters=[
                274 + sum(PARAMETERS[BLUEPRINTS[s.blueprint]] for s in row if s.blueprint is not None)
                for row in self.grid
            ],
            reward_components={
                "gain": [jitter(0, 0.4) for _ in accuracy],
                "rent": [-0.02] * len(accuracy),
                "shaping": [jitter(-0.1, 0.1) for _ in accuracy],
            },
            phases={"train": 0.33, "validate": 0.14, "decide": 0.06, "act": 0.03, "telemetry": 0.004},
        )

    @property
    def sick(self) -> bool:
        """Whether env 07 has begun to drift."""
        return self.has_incidents is not False and self.ctx.round + self.later >= 5

    def who(self, env: int) -> int:
        """The env that something happens to, in a run of fewer envs too."""
        return env % self.envs if self.has_incidents else env

    def norm(self, env: int) -> float:
        value = self.random.uniform(0.75, 1.3)
        return value * (1 + 0.2 * self.ctx.epoch) if env == self.who(7) and self.sick else value

    def accuracy(self, env: int) -> float:
        """Grows with the epochs, the rounds and the seeds blended in."""
        grown = sum(seed.worth * seed.alpha for seed in self.grid[env])
        ceiling = 0.31 + 0.02 * self.ctx.round + grown
        value = ceiling * (1 - math.exp(-self.ctx.epoch / 5)) + self.random.uniform(-0.012, 0.012)
        if env == self.who(2) and self.has_incidents is not False:
            value = min(value, 0.44)
        return min(0.97, max(0.08, value))

    def act(self, env: int) -> tuple[int, int | None]:
        """One op of the policy, and time passing for every seed of the env."""
        row = self.grid[env]
        for slot, seed in enumerate(row):
            self.grow(env, slot, seed)
        op = self.random.choices(range(6), weights=(60, 18, 10, 4, 3, 5))[0]
        slot = self.random.randrange(self.slots)
        seed = row[slot]
        if op == 1 and seed.stage == 0:
            seed.blueprint = self.random.randrange(4)
            seed.worth = self.random.uniform(-0.04, 0.26)
            self.move(env, slot, 1, by="policy")
        elif op == 2 and seed.stage == 2 and seed.epochs >= 2:
            self.gate(env, slot, "G2", passed=True)
            self.move(env, slot, 3, by="policy")
        elif op == 2 and seed.stage == 2:
            self.gate(env, slot, "G2", passed=False)
        elif op == 4 and seed.stage in (2, 3, 4):
            self.move(env, slot, 6, by="policy")
        elif op == 5 and seed.stage == 4:
            self.gate(env, slot, "G5", passed=True)
            self.move(env, slot, 5, by="policy")
        else:
            return 0, None
        return op, slot

    def grow(self, env: int, slot: int, seed: Seed) -> None:
        seed.epochs += seed.stage != 0
        if seed.stage == 1:
            self.move(env, slot, 2)
        elif seed.stage == 3:
            seed.alpha = min(1.0, seed.alpha + 0.2)
            if seed.alpha >= 1.0:
                self.gate(env, slot, "G3", passed=True)
                self.move(env, slot, 4)
        elif seed.stage in (6, 7, 8) and (seed.stage != 7 or seed.epochs >= 2):
            self.move(env, slot, {6: 7, 7: 8, 8: 0}[seed.stage])

    def move(self, env: int, slot: int, stage: int, by: Any = "auto") -> None:
        seed = self.grid[env][slot]
        before, seed.stage, seed.epochs = seed.stage, stage, 0
        seed.alpha = {5: 1.0, 4: 1.0}.get(stage, seed.alpha if stage == 3 else 0.0)
        name = BLUEPRINTS[seed.blueprint] if seed.blueprint is not None else None
        parameters = PARAMETERS.get(name or "", 0)
        about: dict[str, Any] = {"slot": f"r0c{slot}", "blueprint": name, "parameters": parameters}
        if stage == 1:
            about["seed"] = f"r{self.ctx.round}e{self.ctx.epoch}n{env}s{slot}"
            seed.end = ev.SeedEnded(born=self.ctx.epoch, ended=0, how="", **about)
            self.ends.append((env, seed.end))
        if seed.end is not None and stage in range(1, 7):
            seed.end.how, seed.end.ended = STAGES[stage], self.ctx.epoch if stage in (5, 6) else 0
            seed.end.contribution = seed.worth if stage in (3, 4, 5, 6) else None
        self.emit(
            ev.SeedStage(
                **{"seed": seed.end and seed.end.seed, **about},
                from_stage=STAGES[before],
                to_stage=STAGES[stage],
                alpha=seed.alpha,
                by=by,
                contribution=seed.worth if stage in (5, 6) else None,
            ),
            env=env,
        )
        if stage == 0:
            seed.blueprint, seed.worth = None, 0.0

    def gate(self, env: int, slot: int, gate: str, *, passed: bool) -> None:
        seed = end.seed if (end := self.grid[env][slot].end) else None
        checks = {"min_epochs": passed, "gradient_measured": True, "health": True}
        self.emit(ev.SeedGate(slot=f"r0c{slot}", gate=gate, passed=passed, checks=checks, seed=seed), env=env)

    def env_sources(self) -> list[str]:
        seeds = [f"env{env:02d}.r0c{slot}" for env in range(self.envs) for slot in range(self.slots)]
        return [f"env{env:02d}" for env in range(self.envs)] + seeds

    def drift(self, source: list[str]) -> ev.Drift:
        norm: list[float | None] = []
        drift: list[float | None] = []
        for name in source:
            value: float | None = self.random.uniform(0.02, 0.2)
            if name == f"env{self.who(7):02d}" and self.sick:
                value = 0.05 + 0.06 * self.ctx.epoch
            elif name == f"env{self.who(5):02d}" and self.sick and self.ctx.round + self.later == 6:
                value = 0.61
            elif name == "policy.blueprint" and self.sick:
                value = 0.86
            elif "." in name and name.startswith("env"):
                env, slot = int(name[3:5]), int(name[-1])
                value = value if 1 <= self.grid[env][slot].stage <= 5 else None
            drift.append(value)
            norm.append(None if value is None else 1.0 + value)
        missing = [None if v is None else 0.97 for v in drift]
        return ev.Drift(
            source=source,
            norm=norm,
            norm_ema=[None if v is None else 1.0 for v in drift],
            norm_drift=drift,
            health=list(missing),
            health_ema=list(missing),
            health_drift=[None if v is None else round(v / 9, 3) for v in drift],
            limits=DRIFT_LIMITS if source[0].startswith("env") else POLICY_DRIFT_LIMITS,
        )

    def system(self) -> ev.SystemSample:
        return ev.SystemSample(
            cpu_percent=self.random.uniform(140, 180),
            rss=730 * 2**20,
            memory_total=16 * 2**30,
            memory_used=int(self.random.uniform(5.9, 6.2) * 2**30),
            load1=2.1,
            cores=4,
            disk_free=210 * 2**30,
            machine_cpu_percent=96.0,
            machine_cores=8,
        )

    def update(self, number: int) -> ev.PPOUpdate:
        wobble = self.random.uniform
        share = {
            "WAIT": 0.6,
            "GERMINATE": 0.18,
            "ADVANCE": 0.1,
            "SET_ALPHA": 0.04,
            "PRUNE": 0.03,
            "FOSSILIZE": 0.05,
        }
        return ev.PPOUpdate(
            seconds=0.142,
            policy_loss=-0.022 + wobble(-0.01, 0.01),
            value_loss=0.6 / number,
            entropy=0.95 - 0.03 * number,
            head_entropy={head: 0.93 - 0.05 * i - 0.02 * number for i, head in enumerate(list(HEAD_NAMES))},
            approx_kl=0.011 + wobble(-0.004, 0.006),
            clip_fraction=0.15 + wobble(-0.03, 0.03),
            ratio_min=0.71,
            ratio_max=1.40,
            head_ratio_max={head: 1.40 - 0.05 * i for i, head in enumerate(list(HEAD_NAMES))},
            explained_variance=0.7 - 1.1 / number,
            explained_variance_within=0.2 - 0.5 / number,
            grad_norm=1.24,
            head_grad_norm=dict.fromkeys(list(HEAD_NAMES), 0.31),
            critic_grad_norm=2.1,
            advantage_mean=0.0,
            advantage_std=1.0,
            learning_rate=1e-3,
            entropy_coefficient=0.01,
            epochs=4,
            minibatches=2,
            early_stop=False,
            skipped_nonfinite=0,
            op_fraction=share,
            lstm_h_rms=0.38,
            lstm_c_rms=0.81,
            return_std=2.0,
            limits=UPDATE_LIMITS | {"explained_variance": [value_collapse_limits(number, 400)[0]]},
        )

    def finished(self, number: int) -> ev.RoundFinished:
        accuracy = [self.accuracy(env) for env in range(self.envs)]
        best = max(range(self.envs), key=accuracy.__getitem__)
        mean = sum(accuracy) / len(accuracy)
        return ev.RoundFinished(
            seconds=14.6,
            env_epochs_per_second=26.3,
            return_mean=14 * mean,
            return_p10=9 * mean,
            return_p50=14.5 * mean,
            return_p90=18 * mean,
            accuracy_mean=mean,
            accuracy_best=accuracy[best],
            best_env=best,
            test_accuracy_mean=mean - 0.01,
            test_accuracy_best=accuracy[best] - 0.01,
            parameters_mean=900.0,
            final_accuracy=accuracy,
            final_return=[14 * a for a in accuracy],
            germinated=len(self.ends),
            fossilized=sum(end.how == "FOSSILIZED" for _, end in self.ends),
            pruned=sum(end.how == "PRUNED" for _, end in self.ends),
        )

    def incidents(self, number: int, epoch: int) -> None:
        """What goes wrong, and what the operator does."""
        if not (self.envs >= 16 if self.has_incidents is None else self.has_incidents):
            return
        number += self.later
        if (number, epoch) == (3, 12):
            self.command(
                "c0ffee01", "checkpoint", {"tag": "before-lunch"}, {"path": "/runs/x/before-lunch.pt"}
            )
        if (number, epoch) == (4, 6):
            self.anomaly("policy", "kl_spike", "warning", 0.042, 0.03, 1)
        if (number, epoch) == (4, 10):
            self.anomaly("policy", "kl_spike", "warning", 0.011, 0.03, 1, active=False)
        if (number, epoch) == (5, 12):
            self.anomaly(7, "norm_drift", "info", 0.53, 0.5, 2)
        if (number, epoch) == (5, 20):
            self.anomaly(2, "stalled", "info", 18.0, 18.0, 3)
            self.anomaly(7, "gradient_exploding", "warning", 11.2, 10.0, 12)
            self.anomaly(7, "gradient_health", "warning", 0.42, 0.5, 3)
        if (number, epoch) == (6, 10):
            self.emit(
                ev.GovernorRollback(reason="nan", loss=float("inf"), restored_epoch=8, penalty=1.0),
                env=self.who(13),
            )
            self.anomaly(13, "loss_nonfinite", "warning", float("nan"), 1.0, 1)
            self.anomaly(13, "rollback", "info", 3.0, 3.0, 3)
        if (number, epoch) == (6, 12):
            self.anomaly(5, "norm_drift", "info", 0.61, 0.5, 2)
        if (number, epoch) == (6, 14):
            self.emit(
                ev.ParamChanged(key="ppo.learning_rate", old=0.001, new=0.01, by="esper-tui/0.1", uid=1000)
            )
        if (number, epoch) == (6, 16):
            self.anomaly("policy", "nonfinite", "critical", 3.0, 1.0, 1)
            self.anomaly("policy.blueprint", "entropy_collapse", "warning", 0.06, 0.1, 3)
        if (number, epoch) == (6, self.episode_epochs - 3):
            self.command("c0ffee02", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, None)
            self.level = "DEBUG"
            self.emit(
                ev.TelemetryLevel(
                    level="DEBUG", previous="NORMAL", reason="by esper-tui", epochs=5, command="c0ffee02"
                )
            )

    def command(self, id_: str, method: str, params: dict[str, Any], result: dict[str, Any] | None) -> None:
        self.emit(
            ev.CommandAccepted(
                id=id_, method=method, params=params, client="esper-daemon/0.1", uid=1000, pid=99
            )
        )
        if result is not None:
            self.emit(ev.CommandDone(id=id_, method=method, result=result, seconds=0.41), after=1000)

    def anomaly(self, where: str | int, *reading: Any, active: bool = True) -> None:
        """An anomaly of a source, or of the env that something happens to."""
        env = None if isinstance(where, str) else self.who(where)
        source = where if env is None else f"env{env:02d}"
        names = ("kind", "severity", "value", "threshold", "count")
        told = dict(zip(names, reading, strict=True))
        first = self.since.setdefault((source, told["kind"]), self.ts)
        self.emit(ev.Anomaly(source=source, active=active, since=first, **told), env=env)


def events(**options: Any) -> list[Event]:
    """A run's events as a reader gets them."""
    return [decode_line(line) for line in Run(**options).make()]


def write(path: Path, **options: Any) -> Path:
    """A run's journal."""
    path.write_bytes(b"\n".join([*Run(**options).make(), b""]))
    return path


def endless(**options: Any) -> Iterator[bytes]:
    """Lines of a run that does not end."""
    run = Run(**options)
    run.emit(run.started())
    number = 0
    while True:
        number += 1
        run.one_round(number)
        yield from run.lines
        run.lines.clear()
