"""Ten tasks of an operator: the keys that each takes in a terminal of 80x24, and the answer to it."""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import mean

import pytest
from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.source.run_list import LocalMachine, RunList
from esper_overwatch.overwatch_tui.start import RunChoice
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev

from . import journal
from .harness import events, in_loop, session
from .test_app import SMALL, feed_of, shown
from .test_compared_runs import HOUR, make, wait_until
from .test_runs import text_of

NAME = "digits-7f3a"
TASKS: dict[str, tuple[str, ...]] = {
    "why is env 7 red": ("j", "enter"),
    "undo the last change": ("U", "y"),
    "what did the policy do in r0c1, and how sure was it": ("3", "tab"),
    "which seeds pay": ("4",),
    "compare with yesterday's run": ("R", "j", "c"),
    "when did it start to go wrong": ("n",),
    "is the machine full": ("5",),
    "raise telemetry for env 3": ("colon", "3", "enter", "T", "y"),
    "write a chart to a file": ("3", "enter", "s"),
    "stop safely": ("ctrl+x", *NAME, "enter"),
}
"""What an operator wants to know or to do, and the keys for it, from what the terminal shows first."""
TABLE = Path(__file__).parents[2] / "docs" / "lab" / "terminal.md"


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def played(task: str, found: Sequence[Event] = events()) -> AsyncIterator[OverwatchApp]:
    """The terminal after the keys of a task."""
    app = OverwatchApp(session(found))
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press(*TASKS[task])
        await pilot.pause()
        yield app


@in_loop
async def test_env_page_says_why_it_is_red() -> None:
    async with played("why is env 7 red") as app:
        page = shown(app, "box-envs")
        assert " env07 warning" in page
        assert re.search(r"why +exploding gradients ×12, since 08:54:25 \(22s ago\)", page)
        assert "suspect    env07.r0c1 (conv_light) GERMINATED -> TRAINING by its course" in page
        assert "undo       :seed.prune env=7 slot=r0c1   (key U)" in page
        await Pilot(app).press("U", "y")
        ((_, method, params),) = feed_of(app).requests
        assert (method, params) == ("seed.prune", {"env": 7, "slot": "r0c1"}), "what the page says"


@in_loop
async def test_change_that_is_suspected_is_undone() -> None:
    async with played("undo the last change") as app:
        ((_, method, params),) = feed_of(app).requests
        assert (method, params) == ("param.set", {"key": "ppo.learning_rate", "value": 0.001})


@in_loop
async def test_decisions_say_what_was_done_and_how_surely() -> None:
    epochs = [event for event in events() if isinstance(event.data, ev.EpochFinished)]
    now = next(event for event in epochs if (event.ctx.round, event.ctx.epoch) == (6, 15))
    assert isinstance(now.data, ev.EpochFinished)
    seen = events()[: events().index(now) + 1]
    async with played("what did the policy do in r0c1, and how sure was it", seen) as app:
        rows = re.findall(r"(\d+) (\w+) +r0c1 +\.(\d\d)", shown(app, "box-decisions"))
    assert ("15", "GERM", f"{now.data.probability[15]:.2f}"[2:]) in rows


@in_loop
async def test_seeds_say_what_each_blueprint_contributes() -> None:
    worth: dict[str, list[float]] = defaultdict(list)
    for event in events():
        if isinstance(event.data, ev.SeedEnded) and event.data.contribution is not None:
            worth[event.data.blueprint].append(100 * event.data.contribution)
    async with played("which seeds pay") as app:
        rows = re.findall(r"(\w+) +\d+ +\d+ +\d+ +([+-][\d.]+) ", shown(app, "box-seeds"))
    assert dict(rows) == {name: f"{mean(values):+.1f}" for name, values in worth.items()}


@in_loop
async def test_selected_run_is_compared_with_the_watched_one() -> None:
    make("yesterday", begin=journal.START - 24 * HOUR, rounds=3)
    make("today")
    app = OverwatchApp(session(events()), choice=RunChoice(RunList([LocalMachine()])))
    async with app.run_test(size=SMALL) as pilot:
        runs, down, compare = TASKS["compare with yesterday's run"]
        await pilot.press(runs)
        await wait_until(pilot, lambda: "yesterday" in text_of(app))
        ids = {run.name: run.id for _, run in app.choice.runs.entries}
        feed_of(app).run_id = ids["today"]
        await pilot.press(compare)
        assert "Space marks a run" in text_of(app), "the watched one is not compared with itself"
        await pilot.press(down, compare)
        await wait_until(pilot, lambda: "b yesterday" in shown(app, "box-pins"))
        text = shown(app, "box-pins")
    assert re.search(r"by epoch +a today +b yesterday", text)
    assert "return of a round" in text


@in_loop
async def test_guide_says_since_when_and_after_what() -> None:
    async with played("when did it start to go wrong") as app:
        page = shown(app, "box-incidents")
    assert re.search(r"since +08:54:42  \(5.0s ago\)", page)
    assert re.search(r"suspect +ppo.learning_rate 0.001 -> 0.01 by esper-tui, uid 1000, 1.2s", page)


@in_loop
async def test_machine_says_how_full_it_is() -> None:
    async with played("is the machine full") as app:
        page = shown(app, "box-system")
    for words in ("machine 96%", "of 16.0 GiB", "disk 210.0 GiB free"):
        assert words in page


@in_loop
async def test_telemetry_is_raised_for_the_env_on_the_screen() -> None:
    async with played("raise telemetry for env 3") as app:
        ((_, method, params),) = feed_of(app).requests
    assert (method, params) == ("telemetry.escalate", {"level": "DEBUG", "epochs": 5, "env": 3})


@in_loop
async def test_charts_are_saved_as_picture_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = map(str, itertools.count())
    monkeypatch.setattr(time, "strftime", lambda *_: next(seconds))
    async with played("write a chart to a file") as app:
        said = app.session.view.message
    picture, numbers = sorted(tmp_path.glob(f"esper-{NAME}-pins-*"), reverse=True)
    assert said == f"wrote {picture} and .csv"
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    assert numbers.read_text(encoding="utf-8").splitlines()[1].startswith("KL,2025-10-09T08:53:34")


@in_loop
async def test_run_is_stopped_by_its_name_after_a_checkpoint() -> None:
    async with played("stop safely") as app:
        ((_, method, params),) = feed_of(app).requests
    assert (method, params) == ("stop", {"mode": "after_epoch", "checkpoint": True})


def test_documentation_has_the_number_of_keys_that_are_played() -> None:
    rows = re.findall(r"^\| (.+?) \| (\d+)[^|]* \| (\d+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {task: (int(before), int(now)) for task, before, now in rows if task in TASKS}
    assert {task: now for task, (_, now) in found.items()} == {
        task: len(keys) for task, keys in TASKS.items()
    }
    assert all(now <= before for before, now in found.values()), "no task takes more keys than it took"
