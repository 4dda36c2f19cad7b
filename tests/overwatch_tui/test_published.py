"""The terminal on a published run: every key, and the table of metrics under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_overwatch import publish
from esper_overwatch.overwatch_tui import keys
from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.command_line import (
    CommandLineError,
    parse_line,
    read_loop_commands,
)
from esper_overwatch.overwatch_tui.model.log_entries import has_log_entry
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.panels.metric_charts import charted
from esper_overwatch.overwatch_tui.render.bars import key_line
from esper_overwatch.overwatch_tui.render.event_text import event_text
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.feed import LiveFeed
from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.publishing.loop_commands import CommandCall
from tests.cases import mostly_nightly
from tests.overwatch_tui.runs import PUBLISHED
from tests.protocol.harness import until

from . import journal
from .harness import ListFeed, draw, folded, in_loop, panel_inputs, session

PUBLISHED_VIEWS = [view.name for view in PANELS.of(is_published=True).views]


def app() -> OverwatchApp:
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    run.emit(ev.RunStateChanged(state="TRAINING"))
    run.emit(ev.Scalars(step=7, values={f"group/m{i:02d}": float(i) for i in range(60)}))
    return OverwatchApp(session(decode_line(line) for line in run.lines))


def shown(made: OverwatchApp) -> str:
    panels = [p for p in made.screen_stack[0].query(LinePanel) if p.display]
    return "\n".join(plain(line) for panel in panels for line in panel.lines)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
@in_loop
async def test_moves_scroll_the_metrics(size: tuple[int, int]) -> None:
    made = app()
    async with made.run_test(size=size) as pilot:
        await pilot.pause()
        assert "m00" in shown(made)
        assert "no seed" not in shown(made)
        await pilot.press("G")
        assert "m59" in shown(made)
        await pilot.press("g")
        assert "m00" in shown(made)


@in_loop
async def test_escape_clears_the_filter_of_its_main_view() -> None:
    made = app()
    async with made.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"zzz", "enter")
        assert "no metric passes /zzz; Esc shows all" in shown(made)
        await pilot.press("escape")
        assert made.session.view.filters == {}
        assert "no metric passes" not in shown(made)


@in_loop
async def test_filtered_metrics_name_escape_only_while_in_focus() -> None:
    made = app()
    async with made.run_test(size=(200, 50)) as pilot:
        await pilot.press("slash", *"zzz", "enter")
        assert "no metric passes /zzz; Esc shows all" in shown(made)
        await pilot.press("tab")
        assert made.session.view.focus != "metrics"
        assert "no metric passes /zzz" in shown(made)
        assert "Esc shows all" not in shown(made)


def test_footer_offers_only_what_the_run_has() -> None:
    made = app().session
    feed = made.feed
    assert isinstance(feed, ListFeed)

    def footer() -> str:
        return plain(key_line(panel_inputs(made.state), 120))

    made.tick()
    assert [method for _, method, _ in feed.requests] == ["status"]
    feed.answer({"commands": {"stop": {}, "pause": {}, "resume": {}}})
    made.tick()
    assert " X pause " in footer()
    assert not any(word in footer() for word in ("escalate", "profile", "checkpoint"))
    assert not made.state.commands.newest_first()
    assert [method for _, method, _ in feed.requests] == ["status"], "it asks again after some time only"


@in_loop
async def test_a_view_that_it_lacks_is_said() -> None:
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        assert made.session.view.message == "no such view: 4"
        await pilot.press("2")
        assert "none since the run was started" in shown(made)


def test_text_of_several_lines_is_one_line() -> None:
    assert event_text(ev.LoggedText(step=3, name="note", text="two\n  lines\n")) == "note: two lines (step 3)"


def test_alert_has_a_line_for_all_that_becomes_of_it() -> None:
    lines = {}
    for change in ("raised", "failing", "failed", "sent"):
        alert = ev.Alert(id="1", rule="diverged", change=change, level="critical", title="loss is nan")  # type: ignore[arg-type]
        if change != "raised":
            alert.action, alert.error, alert.attempts = "webhook", "no answer within 10 s", 2
        assert has_log_entry(alert)
        lines[change] = event_text(alert)
    assert lines == {
        "raised": "diverged: loss is nan",
        "failing": "diverged: webhook is tried again: no answer within 10 s",
        "failed": "diverged: webhook failed: no answer within 10 s",
        "sent": "diverged: webhook has told it at attempt 2",
    }


def test_waiting_for_a_round_of_a_published_run_is_refused() -> None:
    with pytest.raises(EsperError, match="has no rounds: leave out --after-round"):
        app().session.wait(after_round=1)


@in_loop
async def test_keys_of_trainings_are_refused_in_words() -> None:
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        await pilot.press("T")
        assert made.session.view.message == "a published run does not have the command telemetry.escalate"


@pytest.mark.slow
@pytest.mark.parametrize("view", mostly_nightly(PUBLISHED_VIEWS, "run"))
@in_loop
async def test_no_key_fails_in_any_view_of_it(view: str) -> None:
    leaving = {"q", "ctrl+c", "ctrl+z", "f8"}
    names = [name for key in keys.KEYS for name in key.keys.split(",") if name and name not in leaving]
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        for name in [*(view.key for view in PANELS.views), *names]:
            PANELS.show(made.session.view, view)
            await pilot.press(name)
            while len(made.screen_stack) > 1:
                await pilot.press("escape")
        assert made.is_running


COMMANDS = {
    "lr": {
        "help": "Set the learning rate.",
        "parameters": {"value": {"type": "float"}, "warm": {"type": "int", "default": 10}},
    },
    "stop": {"help": "End the loop.", "parameters": {}},
}


def with_commands() -> OverwatchApp:
    made = app()
    made.session.tick()
    feed = made.session.feed
    assert isinstance(feed, ListFeed)
    feed.answer({"commands": COMMANDS})
    made.session.tick()
    return made


def on_top(made: OverwatchApp) -> str:
    return "\n".join(plain(line) for panel in made.screen.query(LinePanel) for line in panel.lines)


@in_loop
async def test_own_command_is_typed_asked_and_sent() -> None:
    made = with_commands()
    feed = made.session.feed
    assert isinstance(feed, ListFeed)
    async with made.run_test(size=(80, 24)) as pilot:
        await pilot.press("colon", "l", "r")
        assert "value=FLOAT [warm=10]  Set the learning rate." in on_top(made)
        await pilot.press("space", "enter")
        assert "value is missing: a number" in on_top(made)
        await pilot.press("n", "o", "enter")
        assert "value = 'no': must be a number" in on_top(made)
        await pilot.press("backspace", "backspace", *"0.5", "enter")
        assert "Send lr value=0.5?" in on_top(made)
        assert [method for _, method, _ in feed.requests] == ["status"], "nothing is sent before the yes"
        await pilot.press("y")
        assert feed.requests[-1][1:] == ("lr", {"value": 0.5})
        assert "cmd #1 lr" in shown(made)


def test_own_command_reaches_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with publish("loop") as run:
        run.command("save", tag=str)
        made = Session(LiveFeed("loop"), ViewState())
        try:
            until(lambda: (made.tick(), made.link.state == "live")[1])
            made.send("save", {"tag": "x"})
            asked: list[CommandCall] = []
            until(lambda: (made.tick(), asked.extend(filter(None, [run.asked("save")])), asked)[-1])
            asked[0].done(path="x.pt")
            until(lambda: (made.tick(), made.state.commands.newest_first()[0].state == "DONE")[1])
        finally:
            made.close()


@in_loop
async def test_read_only_offers_no_own_command() -> None:
    made = with_commands()
    made.session.view.read_only = True
    async with made.run_test(size=(80, 24)) as pilot:
        await pilot.press("colon", "l", "r")
        assert "learning rate" not in on_top(made)


@in_loop
async def test_views_without_meaning_are_not_offered() -> None:
    made = app()
    async with made.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        text = shown(made)
        assert "[1 Run]" in text
        assert "3 Metrics" in text
        assert "ABOUT" in text
        assert not any(word in text for word in ("Drift", "Policy", "Seeds", "SEEDS", "ENV"))
        for _ in range(12):
            await pilot.press("tab")
            assert not any(word in shown(made) for word in ("Drift", "Policy", "Seeds"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", " 7", 7),
        ("float", "1e-3", 1e-3),
        ("bool", "Yes", True),
        ("bool", "n", False),
        ("str", "a b", "a b"),
    ],
)
def test_typed_values_become_their_types(kind: str, text: str, value: object) -> None:
    loop = read_loop_commands({"save": {"parameters": {"x": {"type": kind}}}})
    parsed = parse_line(f'save x="{text}"', loop)
    assert parsed is not None
    assert parsed.params == {"x": value}


@pytest.mark.parametrize(("kind", "text"), [("int", "1.5"), ("float", "x"), ("bool", "2"), ("str", "z")])
def test_what_is_not_of_the_type_is_refused(kind: str, text: str) -> None:
    choices = {"enum": ["a", "b"]} if kind == "str" else {}
    loop = read_loop_commands({"save": {"parameters": {"x": {"type": kind, **choices}}}})
    with pytest.raises(CommandLineError, match=r"x = .* must be"):
        parse_line(f"save x={text}", loop)


def test_commands_of_a_hostile_publisher_are_read() -> None:
    found = read_loop_commands({"a": None, "b": {"parameters": 3}, "c": {"parameters": {"x": 1, "y": {}}}})
    assert [(one.name, [p.name for p in one.parameters]) for one in found.values()] == [
        ("a", []),
        ("b", []),
        ("c", ["y"]),
    ]


def test_numbers_that_differ_in_a_count_share_a_chart() -> None:
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    values = {"env/10/return": 1.0, "env/2/return": 2.0, "train/loss": 3.0}
    run.emit(ev.Scalars(step=1, values=values))
    inputs = panel_inputs(folded(decode_line(line) for line in run.lines))
    assert charted(inputs) == {
        "env/*/return": ["env/2/return", "env/10/return"],
        "train/loss": ["train/loss"],
    }
    assert inputs.history("metric/env/2/return") is not None


def test_digits_that_are_no_counts_sort_as_text() -> None:
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    names = ["loss/10", "loss/9", "loss/²", "²/loss"]
    run.emit(ev.Scalars(step=1, values=dict.fromkeys(names, 1.0)))
    made = session(decode_line(line) for line in run.lines)
    assert charted(made.panel_inputs()) == {
        "loss/*": ["loss/9", "loss/10"],
        "loss/²": ["loss/²"],
        "²/loss": ["²/loss"],
    }
    for view in PUBLISHED_VIEWS:
        PANELS.show(made.view, view)
        assert draw(made.panel_inputs(), 80, 24)
