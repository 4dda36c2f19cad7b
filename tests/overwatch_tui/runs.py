"""Folders of runs, and a machine that answers what the test says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper_overwatch.overwatch_tui.source.curve_readers import CurveReader
from esper_overwatch.overwatch_tui.source.feed import Feed
from esper_overwatch.overwatch_tui.source.run_list import ListedRun
from esper_overwatch.protocol.journal.overview import RunOverview
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, choose_run

from . import journal
from .harness import ListFeed, events

PUBLISHED: dict[str, Any] = {
    **{name: [] for name in ("slots", "blueprints", "stages", "ops", "heads")},
    **dict.fromkeys(("torch", "device", "task", "policy"), ""),
    **dict.fromkeys(("envs", "episode_epochs", "rounds", "host_parameters", "seed"), 0),
    "run": "7f3a09c1",
    "name": "my-loop",
    "boot": "b1",
    "pid": 4242,
    "host": "h",
    "version": "0",
    "config": {},
    "kind": "published",
    "tags": ["ppo", "cartpole"],
}
"""Fields of the first event of a published run."""


def make_run(
    home: Path,
    name: str,
    *,
    exit_code: int | None = None,
    reason: str = "stop by uid 7 (x)",
    rounds: int = 2,
    envs: int = 4,
) -> None:
    """A run that has ended; without an exit code it was killed."""
    run = journal.Run(rounds=rounds, envs=envs)
    run.make()
    if exit_code is not None:
        run.emit(ev.RunStopped(reason=reason, exit_code=exit_code, rounds=rounds, error="boom"))
    with RunFolder.claim(name, home=home) as folder:
        folder.events.write_bytes(b"".join(line + b"\n" for line in run.lines))


def listed(
    name: str,
    state: str = "TRAINING",
    *,
    kind: str = "training",
    tags: Sequence[str] = (),
    **more: object,
) -> ListedRun:
    """A row of the list, begun an hour ago."""
    now = time.time_ns() // 1000
    figures: dict[str, object] = {"ts": now, "round": 3, "rounds": 10, "values": (1.0, 2.0, 4.0), **more}
    return ListedRun(
        name=name,
        id=f"id-{name}",
        live=state in ("TRAINING", "PAUSED", "STARTING"),
        kind=kind,
        state=state,
        tags=tags,
        created=now - 3_600_000_000,
        overview=RunOverview(**figures),  # type: ignore[arg-type]
    )


class FakeMachine:
    """Has the runs that the test gives it.

    Args:
        runs: None = has not answered yet.
        silence: seconds since its last word, if it should have said something since.
    """

    def __init__(
        self,
        runs: Sequence[ListedRun] | None,
        *,
        host: str = "",
        problem: str = "",
        silence: int | None = None,
    ) -> None:
        self.host, self.problem, self.silence = host, problem, silence
        self.runs = runs
        self.opened: list[str] = []
        self.feed = ListFeed(events(4, 2))
        self._told: object = None

    def poll(self, *, batch: bool) -> bool:
        now = (self.runs, self.problem, self.silence)
        has_changed, self._told = now != self._told, now
        return has_changed

    def find(self, name: str) -> ListedRun:
        return choose_run(self.runs or (), name)

    def read_curves(self, run: ListedRun, mark: str, *, once: bool = False) -> CurveReader:
        raise AssertionError(f"{run.name}, {mark}, {once}: it has no journals")

    def open(self, run: ListedRun) -> Feed:
        self.opened.append(run.name)
        self.feed = ListFeed(events(4, 2), name=run.name, is_replay=not run.live)
        self.feed.run_id = run.id
        return self.feed

    def forgets_silent_failure(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing runs."""
