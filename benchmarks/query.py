"""SQL over a long journal: seconds and memory of a first and of a repeated query, each in its own process.

Makes a journal of a run of 8 envs with 3 slots in segments of 64 MiB, as the daemon writes them, and asks
three questions: one of rounds, one over all epochs, one over all seeds. The first query reads each compressed
segment once and keeps its tables; `--events` says how many events the journal has.

Then the same views are asked of ten rounds only, of this journal and of one a quarter as long: what is asked
of as many rows has to take as long, however long the run is.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.codec.json_lines import Encoder
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, STREAMS, Op, Stage
from tests.protocol.values import an_event

from .report import finish

N, S, EPOCHS = 8, 3, 24
QUESTIONS = (
    "SELECT count(*), max(accuracy_best) FROM rounds",
    "SELECT epoch, avg(val_accuracy), avg(reward) FROM epochs GROUP BY epoch ORDER BY epoch",
    "SELECT blueprint, end_stage, count(*), avg(contribution) FROM seeds GROUP BY ALL ORDER BY ALL",
)
TEN_ROUNDS = tuple(
    f"SELECT * FROM {view} WHERE round BETWEEN 100 AND 109"
    for view in (
        "rounds",
        "epochs",
        "slots",
        "decisions",
        "rewards",
        "stages",
        "gates",
        "gate_checks",
        "seeds",
    )
)
_ASK = """
import json, resource, sys, time
from pathlib import Path
from esper_overwatch.trainer.query.database import Database
begun = time.perf_counter()
database = Database(Path(sys.argv[1]))
seconds = [time.perf_counter() - begun]
for sql in json.loads(sys.argv[2]):
    times = []
    for _ in range(int(sys.argv[3])):
        begun = time.perf_counter()
        assert database.ask(sql).rows
        times.append(time.perf_counter() - begun)
    seconds.append(min(times))
print(json.dumps({"seconds": seconds, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def events(count: int) -> Iterator[tuple[Context, object, int | None]]:
    """Make `count` events of a run, as (clock, event, env)."""
    random_ = random.Random(1)
    yield Context(), _started(), None
    round_ = made = 0
    while True:
        round_ += 1
        for one in _round(random_, round_):
            made += 1
            if made >= count:
                return
            yield one


def _started() -> ev.RunStarted:
    return an_event(
        ev.RunStarted,
        envs=N,
        slots=[f"r0c{i}" for i in range(S)],
        blueprints=["norm", "attention"],
        stages=[stage.name for stage in Stage],
        ops=[op.name for op in Op],
        heads=list(HEAD_NAMES),
        episode_epochs=EPOCHS,
    )


def _round(random_: random.Random, round_: int) -> Iterator[tuple[Context, object, int | None]]:
    yield Context(round=round_), ev.RoundStarted(rounds=0), None
    for epoch in range(EPOCHS):
        clock = Context(round=round_, epoch=epoch)
        for env in range(N):
            slot, step = f"r0c{epoch // 4 % S}", epoch % 4
            seed = f"r{round_}e{epoch - step}n{env}s0"
            before, after = (
                ("DORMANT", "GERMINATED"),
                ("GERMINATED", "TRAINING"),
                ("TRAINING", "BLENDING"),
                ("BLENDING", "PRUNED"),
            )[step]
            id_ = f"r{round_}e{epoch}n{env}"
            yield (
                clock,
                an_event(ev.SeedStage, slot=slot, from_stage=before, to_stage=after, seed=seed, action=id_),
                env,
            )
            yield (
                clock,
                ev.SeedGate(
                    slot=slot,
                    gate="G2",
                    passed=True,
                    action=id_,
                    seed=seed,
                    checks={"healthy": True, "improved": True},
                ),
                env,
            )
        yield Context(round=round_, epoch=epoch + 1), _epoch(random_), None
        yield clock, an_event(ev.SystemSample), None
    end = Context(round=round_, epoch=EPOCHS)
    for env in range(N):
        yield from ((end, seed, env) for seed in _ends(random_, round_, env))
    yield end, an_event(ev.RoundFinished, accuracy_best=random_.random()), None


def _ends(random_: random.Random, round_: int, env: int) -> Iterator[ev.SeedEnded]:
    for born in range(0, EPOCHS, 4):
        seed, slot = f"r{round_}e{born}n{env}s0", f"r0c{born // 4 % S}"
        ends = {"born": born, "ended": born + 3, "how": "PRUNED", "contribution": random_.random()}
        yield an_event(ev.SeedEnded, seed=seed, slot=slot, **ends)


def _epoch(random_: random.Random) -> ev.EpochFinished:
    def per_env() -> list[float]:
        return [random_.random() for _ in range(N)]

    codes = [[2] * S for _ in range(N)]
    rows = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "reward", "episode_return")
    grids = ("alpha", "contribution", "seed_grad_norm", "seed_health")
    return an_event(
        ev.EpochFinished,
        **{name: per_env() for name in (*rows, "host_grad_norm", "host_health")},
        **{name: [[random_.random() for _ in range(S)] for _ in range(N)] for name in grids},
        **dict.fromkeys(("stage", "epochs_in_stage", "gates_asked", "gates_passed"), codes),
        op=[1] * N,
        action_slot=[1] * N,
        blueprint=[[0] * S] * N,
        parameters=[300] * N,
        reward_components={"gain": per_env(), "rent": per_env()},
        phases={"train": 0.4, "validate": 0.1},
        executed=[True] * N,
        heads={name: [0] * N for name in HEAD_NAMES},
    )


def write_journal(path: Path, count: int) -> int:
    """Write `count` events; gives the bytes of their lines."""
    journal = Journal(path)
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    written = 0
    for n, (clock, event, env) in enumerate(events(count)):
        encoder.add(1_780_000_000_000_000 + n * 1000, clock, event, env)
        if n % 512 == 0:
            batches = encoder.take()
            written += sum(len(batch.body) for batch in batches)
            journal.append(batches)
    journal.append(encoder.take())
    while journal.segments["not_compressed"]:
        time.sleep(0.1)
    journal.close()
    return written


def ask(path: Path, questions: tuple[str, ...] = QUESTIONS, times: int = 1) -> dict[str, Any]:
    """Open the journal and ask everything, in a new process; the least seconds of all repetitions."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(path), json.dumps(questions), str(times)],
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer | {"total": time.perf_counter() - begun}


def growth(short: Path, long: Path) -> dict[str, float]:
    """By view, the time for ten rounds of the long journal over that of the short one; prints them."""
    for path in (short, long):
        ask(path)
    seconds = {path: ask(path, TEN_ROUNDS, times=7)["seconds"][1:] for path in (short, long)}
    ratios = {}
    for sql, of_short, of_long in zip(TEN_ROUNDS, seconds[short], seconds[long], strict=True):
        view = sql.split()[3]
        ratios[view] = of_long / of_short
        print(f"  ten rounds of {view}: {1e3 * of_short:.1f} ms, of the long journal {1e3 * of_long:.1f} ms")
    return ratios


@click.command(help=__doc__)
@click.option("--events", "count", default=1_000_000, help="Events of the journal.")
def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        short, path = (Path(folder) / name / "events.jsonl" for name in ("short", "long"))
        for target, length in ((short, count // 4), (path, count)):
            target.parent.mkdir()
            size = write_journal(target, length)
        print(f"{count:,} events, {size / 2**20:.0f} MiB of lines")
        first = ask(path)
        repeated = min((ask(path) for _ in range(3)), key=lambda one: float(one["total"]))
        ratios = growth(short, path)
    for name, one in (("first", first), ("repeated", repeated)):
        opened, *asked = one["seconds"]
        queries = ", ".join(f"{seconds:.2f}" for seconds in asked)
        print(f"  {name}: opened in {opened:.2f} s, queries {queries} s, {one['mib']:.0f} MiB")
    finish(
        "query",
        {
            "events": count,
            "first_seconds": first["total"],
            "first_mib": first["mib"],
            "repeated_seconds": repeated["total"],
            "repeated_mib": repeated["mib"],
            "growth": max(ratios.values()),
            **{f"growth_{view}": ratio for view, ratio in ratios.items()},
        },
        {
            "repeated_seconds": ("<=", 10.0),
            "first_mib": ("<=", 1024.0),
            "repeated_mib": ("<=", 1024.0),
            "growth": ("<=", 2.0),
        },
    )


if __name__ == "__main__":
    main()
