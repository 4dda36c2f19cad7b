"""Measure what the policy learns: ten minutes of the default run, and the fixed policies on the same hosts.

    python -m benchmarks.learning [--minutes 10] [--rounds 3]

No-growth never plants a seed, random takes any legal action, heuristic plants where a host stands still
and keeps what helps, fixed plants convolutions in two slots.
The return of the default run is averaged over its first and its last ten rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

import click
import torch

from esper_overwatch.protocol.messages.events import RoundFinished
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon.daemon import Daemon
from esper_overwatch.trainer.data.registry import load

from .report import finish

WINDOW = 10
"""Rounds over which a mean is taken."""


def rounds_of(kind: str, *, rounds: int = 0, seconds: float = 0.0) -> list[RoundFinished]:
    """Summaries of a run with a policy, for a number of rounds or of seconds."""
    config = settings.load(sets=[f"policy.kind={kind}", "device=cpu"])
    summaries: list[RoundFinished] = []
    with RunFolder.claim(f"bench-{kind}") as run:
        daemon = Daemon(run, config, torch.device("cpu"), load("digits"), resume=None)
        daemon.server.start()
        tell = daemon.recorder.finish_round

        def keep(*args: object, **kwargs: object) -> RoundFinished:
            summaries.append(tell(*args, **kwargs))  # type: ignore[arg-type]
            return summaries[-1]

        daemon.recorder.finish_round = keep  # type: ignore[method-assign]
        end = time.perf_counter() + seconds
        hooks = daemon.hooks
        hooks.wants_round = lambda finished: finished < rounds or time.perf_counter() < end  # type: ignore[method-assign]
        daemon.trainer.run(daemon.hooks)
        daemon.server.close()
    return summaries


def mean_accuracy(summaries: list[RoundFinished]) -> float:
    return statistics.fmean(s.accuracy_mean for s in summaries)


def mean_return(summaries: list[RoundFinished]) -> float:
    return statistics.fmean(s.return_mean for s in summaries)


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Duration of the default run.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of each fixed policy.")
def main(minutes: float, rounds: int) -> None:
    """Print the learning curve and end with a JSON line."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        os.environ.update(ESPER_HOME=f"{folder}/home", XDG_RUNTIME_DIR=folder)
        for kind in ("no_growth", "random", "heuristic", "fixed"):
            summaries = rounds_of(kind, rounds=rounds)
            figures[f"accuracy_{kind}"] = mean_accuracy(summaries)
            figures[f"return_{kind}"] = mean_return(summaries)
        curve = rounds_of("ppo", seconds=60 * minutes)
    for start in range(0, len(curve), WINDOW):
        part = curve[start : start + WINDOW]
        print(
            f"rounds {start + 1:>4} to {start + len(part):>4}: return {mean_return(part):+.3f}, "
            f"accuracy {mean_accuracy(part):.3f} mean, {max(s.accuracy_best for s in part):.3f} best"
        )
    first, last = curve[:WINDOW], curve[-WINDOW:]
    figures |= {
        "rounds": len(curve),
        "first_round_seconds": curve[0].seconds,
        "return_first": mean_return(first),
        "return_last": mean_return(last),
        "return_gain": mean_return(last) - mean_return(first),
        "accuracy_first": mean_accuracy(first),
        "accuracy_last": mean_accuracy(last),
        "accuracy_best": max(s.accuracy_best for s in curve),
        "accuracy_over_no_growth": mean_accuracy(last) - figures["accuracy_no_growth"],
    }
    finish(
        "learning",
        figures,
        {
            "first_round_seconds": ("<=", 30.0),
            "return_gain": (">=", 0.2),
            "accuracy_over_no_growth": (">=", 0.2),
        },
    )


if __name__ == "__main__":
    main()
