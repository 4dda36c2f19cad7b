"""Random keys and sizes, thousands of them: nothing is raised, and every screen above the main one closes."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from esper_overwatch import overwatch_tui
from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.curves import ComparedRun
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.curve_readers import CurveReader
from esper_overwatch.overwatch_tui.source.feed import Feed
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.overwatch_tui.source.run_list import ListedRun, RunList
from esper_overwatch.overwatch_tui.start import RunChoice
from esper_overwatch.protocol.client.items import LinkChanged, Reset
from tests.cases import mostly_nightly

from .harness import ListFeed, events, in_loop, type_keys
from .record import recorded_events, unpack
from .runs import FakeMachine, listed
from .scenes import published_events
from .test_app import DOCUMENTED, panels, within

SIZES = ((80, 24), (120, 40), (200, 60), (79, 24), (40, 8), (1, 1))
NOISE = [*string.ascii_letters, *string.digits, *string.punctuation, "é", "漢", "delete", "f5", "ctrl+u"]
KEYS = [name for name in DOCUMENTED if name != "ctrl+z"]
"""Suspending stops the process: it is tested on a pseudo-terminal."""
BURST = 25
"""Keys between two changes of what the run does."""
MOST_SCREENS = 12
LINES = (
    ":pause",
    ":checkpoint",
    ":stop",
    ":mark text=x",
    ":nothing a=",
    ":set_lr lr=2",
    "/acc<60 st:roll",
    "/(",
)
ASKING = {"status", "history"}
"""What the terminal asks of itself."""
COMMANDS = {
    "set_lr": {"help": "a new rate", "parameters": {"lr": {"type": "float"}, "why": {"default": "x"}}},
    "shuffle": {"help": "at once", "parameters": {}},
    "stop": {},
}


class StayingApp(OverwatchApp):
    """Cannot be left, so that the storm goes on."""

    CSS_PATH = Path(overwatch_tui.__file__).with_name("app.tcss")
    num_left = 0

    def action_leave(self) -> None:
        self.num_left += 1


class RecordingMachine(FakeMachine):
    """Keeps every feed that it has opened."""

    def __init__(self, feed: Feed) -> None:
        super().__init__([listed("alpha"), listed("beta", "DIED"), listed("loop", kind="published")])
        self.feeds = [feed]

    def open(self, run: ListedRun) -> Feed:
        self.feeds.append(super().open(run))
        return self.feeds[-1]

    def read_curves(self, run: ListedRun, mark: str, *, once: bool = False) -> CurveReader:
        return CurveReader(ComparedRun(mark, run.name, run.created), (event for event in events(4, 2)))


class Storm:
    """An app in one situation, and random keys for it.

    Args:
        feed: what it follows at first.
        read_only: whether it may send anything.
        seed: of the keys.
    """

    def __init__(self, feed: Feed, *, read_only: bool, seed: int) -> None:
        session = Session(feed, ViewState(read_only=read_only))
        session.tick()
        self.machine = RecordingMachine(feed)
        runs = RunList([self.machine])
        self.app = StayingApp(session, choice=RunChoice(runs=runs, read_only=read_only))
        self._random = random.Random(seed)

    async def blow(self, pilot: Pilot[None], keys: int) -> None:
        """Press so many keys; now and then the terminal's size changes, and something comes in."""
        for _ in range(0, keys, BURST):
            await type_keys(self.app, *self._burst())
            await pilot.pause(0)
            if self._random.random() < 0.2:
                await pilot.resize_terminal(*self._random.choice(SIZES))
            self._answer()
            assert len(self.app.screen_stack) < MOST_SCREENS, "screens pile up"

    def _burst(self) -> list[str]:
        """Keys, each from some pool; now and then a line that somebody could have meant."""
        names = [self._random.choice(self._pool()) for _ in range(BURST)]
        if self._random.random() < 0.3:
            names[-BURST // 2 :] = ["escape", "escape", *self._random.choice(LINES), "enter", "y"]
        return names

    def _pool(self) -> list[str]:
        if self._random.random() < 0.15:
            return ["escape", "enter", "y"]
        return NOISE if self._random.random() < 0.3 else KEYS

    def _answer(self) -> None:
        feed = self.app.session.feed
        if not isinstance(feed, ListFeed):
            return
        feed.batch = 20
        if feed.requests and self._random.random() < 0.5:
            feed.answer({"state": "accepted", "commands": COMMANDS})
        feed.link["state"] = self._random.choice(("live", "live", "live", "slow", "stale", "lost"))

    async def calm(self, pilot: Pilot[None]) -> None:
        """Every screen above the main one closes with Esc; then the main screen shows the run."""
        for _ in range(2 * MOST_SCREENS):
            if len(self.app.screen_stack) > 1:
                await pilot.press("escape")
        assert len(self.app.screen_stack) == 1, self.app.screen_stack
        await pilot.resize_terminal(120, 40)
        await pilot.press("escape", "1")
        await pilot.pause()
        assert {panel.id for panel in panels(self.app)} >= {"box-header", "box-views", "box-keys"}

    @property
    def sent(self) -> list[str]:
        """Methods of the commands that were sent, to any run."""
        feeds = [feed for feed in self.machine.feeds if isinstance(feed, ListFeed)]
        return [method for feed in feeds for _, method, _ in feed.requests if method not in ASKING]


def live(folder: Path) -> Feed:
    """Joined in the middle of a real run; the rest comes during the storm."""
    del folder
    return ListFeed([LinkChanged("live"), Reset("run digits-8, boot b1"), *recorded_events()])


def replay(folder: Path) -> Feed:
    return ReplayFeed(unpack(folder / "events.jsonl"), 50.0)


def published(folder: Path) -> Feed:
    del folder
    return ListFeed([LinkChanged("live"), Reset("run my-loop, boot b1"), *published_events()])


def empty(folder: Path) -> Feed:
    del folder
    return ListFeed(state="searching", name=None)


SITUATIONS: dict[str, tuple[Callable[[Path], Feed], bool, tuple[str, ...]]] = {
    "live": (live, False, ()),
    "frozen": (live, False, ("space", "comma")),
    "replay": (replay, True, ()),
    "published": (published, False, ()),
    "read-only": (live, True, ()),
    "published-read-only": (published, True, ()),
    "empty": (empty, False, ()),
}
"""Name -> (feed, read-only, first keys)."""


async def weather(name: str, folder: Path, keys: int, seed: int = 13) -> Storm:
    make, read_only, first = SITUATIONS[name]
    storm = Storm(make(folder), read_only=read_only, seed=seed)
    if isinstance(storm.app.session.feed, ListFeed) and "published" in name:
        storm.app.session.state.loop_commands = COMMANDS
    with within(folder):
        async with storm.app.run_test(size=(120, 40)) as pilot:
            await pilot.press(*first)
            await storm.blow(pilot, keys)
            await storm.calm(pilot)
            assert storm.app.is_running
    return storm


@pytest.mark.slow
@in_loop
async def test_a_short_storm_of_keys_raises_nothing(tmp_path: Path) -> None:
    storm = await weather("read-only", tmp_path, 100)
    assert storm.sent == []
    await weather("live", tmp_path, 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", mostly_nightly(SITUATIONS, "published"))
@in_loop
async def test_thousands_of_random_keys_raise_nothing(name: str, tmp_path: Path) -> None:
    storm = await weather(name, tmp_path, 10_000 if name == "live" else 2_500)
    if SITUATIONS[name][1]:
        assert storm.sent == []
    elif name != "empty":
        assert storm.sent, "the storm has confirmed questions, too"
    assert storm.app.num_left, "the storm has pressed the key that leaves"


ABOVE = {
    "help": (("question_mark",), ("3", "s", "T", "0")),
    "moment": (("colon", *"go_to "), ("3", "s", "T", "q", "space")),
    "filter": (("slash",), ("3", "s", "T", "q", "space")),
    "command": (("colon",), ("3", "s", "T", "q", "space")),
    "question": (("C",), ("3",)),
    "runs": (("R",), ("3", "s", "T", "space")),
}
"""Name -> (keys that open it, keys that mean something else beneath it)."""


@pytest.mark.parametrize("name", ABOVE)
@in_loop
async def test_keys_typed_above_the_main_screen_never_leak(name: str) -> None:
    storm = Storm(live(Path()), read_only=False, seed=1)
    view = storm.app.session.view
    async with storm.app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*ABOVE[name][0])
        before = (view.name, view.sort, view.is_frozen)
        await pilot.press(*ABOVE[name][1])
        for _ in range(3):
            await pilot.press("escape")
        assert (view.name, view.sort, view.is_frozen) == before
        assert len(storm.app.screen_stack) == 1
        assert storm.app.num_left == 0
    assert storm.sent == []
