"""The terminal: a timer drains the feed, keys change the view, the main screen shows the layout."""

from __future__ import annotations

import math
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.events import Event, InputEvent, Resize

from . import keys
from .model.anomalies import AnomalyKey
from .panels import PANELS, VIEWS
from .render.layout import MIN_HEIGHT, MIN_WIDTH, ScreenLayout, compose_screen, main_columns
from .render.panel import PanelInputs
from .render.theme import Theme
from .screens.confirm import ConfirmScreen
from .screens.help import HelpScreen
from .screens.main import MainScreen
from .screens.questions import OF_TRAININGS, QUESTIONS
from .screens.screenshot import self_contained
from .session import Session

DRAIN_SECONDS = 1 / 30
DOUBLE_PRESS_SECONDS = 2.0
FULL_TERMINAL_SECONDS = 0.1
"""A terminal that takes nothing for so long is on a slow link."""


class OverwatchApp(App[None]):
    """Overwatch over one session.

    Args:
        session: the feed and what is known.
        colour: False paints with bold and reverse only.
    """

    CSS_PATH = "app.tcss"
    TITLE = "esper overwatch"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, *, colour: bool = True) -> None:
        super().__init__(ansi_color=True)
        self.session = session
        self.palette = Theme(colour=colour)
        self.frozen: PanelInputs | None = None
        """What the panels show while frozen."""
        self._paint_at = 0.0
        self._interrupted = -DOUBLE_PRESS_SECONDS
        self._full_since: float | None = None
        """Since when the terminal has taken nothing; infinite once the rate has been halved for it."""
        self._is_leaving = False
        self._rung: set[tuple[AnomalyKey, int]] | None = None
        """(key, since) of what the bell has rung for; None before the first look."""

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.palette)

    def on_mount(self) -> None:
        self.set_interval(DRAIN_SECONDS, self.tick)
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())

    async def on_event(self, event: Event) -> None:
        """Keys that were typed after the one that leaves have no screen any more that could take them."""
        if not (self._is_leaving and isinstance(event, InputEvent)):
            await super().on_event(event)

    def on_resize(self, _: Resize) -> None:
        self.call_next(self.paint)

    def on_main_screen_unknown_key(self, message: MainScreen.UnknownKey) -> None:
        self.show_message(f"no such key: {message.key}; ? helps")
        self.paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """With --read-only the keys of commands do nothing."""
        if self.session.view.read_only and action == keys.COMMAND_ACTION:
            return False
        return super().check_action(action, parameters)

    def tick(self) -> None:
        """Take in what has come; paint when it is time."""
        events = self.session.tick()
        if self.frozen is not None:
            self.session.view.num_arrived += events
        if not self.session.needs_paint and time.monotonic() < self._paint_at:
            return
        if self._terminal_is_full():
            self._slow_down()
            return
        self._full_since = None
        self.session.needs_paint = False
        self.paint()
        self._ring()

    def _ring(self) -> None:
        """The bell, once for each critical anomaly that began while this terminal watched a live run."""
        session = self.session
        waiting = session.state.anomalies.open_records(session.feed.now())
        critical = {(record.key, record.first) for record in waiting if record.severity == "critical"}
        is_watching = session.link.is_current and not session.link.is_replay
        if is_watching and self._rung is not None and critical - self._rung:
            self.bell()
        if is_watching:
            self._rung = critical | (self._rung or set())

    def _terminal_is_full(self) -> bool:
        """Whether the terminal has not yet taken what it was sent."""
        if self.is_headless or sys.__stderr__ is None:
            return False
        return not select.select([], [sys.__stderr__], [], 0)[1]

    def _slow_down(self) -> None:
        """Paint nothing for now; half as often from now on, once for each time the terminal is full."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        elif now - self._full_since > FULL_TERMINAL_SECONDS and self.session.view.decrease_rate():
            self._full_since = math.inf
            self.show_message(f"slow link: {self.session.view.rate:g} frames per second (r for more)")

    def paint(self) -> None:
        """Show this moment."""
        self._paint_at = time.monotonic() + 1.0 / self.session.view.rate - DRAIN_SECONDS / 2
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        width, height = self.size
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            main.show_too_small(width, height)
        else:
            layout = self.screen_layout(width, height)
            main.show_layout(layout)
            self.session.view.keep(layout.scroll, layout.env)

    def screen_layout(self, width: int, height: int) -> ScreenLayout:
        """The screen at some size, without showing it."""
        live = self.session.panel_inputs()
        return compose_screen(PANELS, live, self.frozen or live, width, height)

    @property
    def body(self) -> PanelInputs:
        """What the panels show: this moment, or the frozen one."""
        return self.frozen or self.session.panel_inputs()

    def show_message(self, message: str) -> None:
        """Show a message in the footer for a few seconds."""
        self.session.view.show_message(message)

    def action_redraw(self) -> None:
        """Send the whole screen: a shell or another program may have written over it."""
        self.paint()
        self.screen.refresh()

    def action_leave(self) -> None:
        self._is_leaving = True
        self.exit()

    def action_help_quit(self) -> None:
        """ctrl+c: the second one within two seconds leaves."""
        now = time.monotonic()
        if now - self._interrupted < DOUBLE_PRESS_SECONDS:
            self.action_leave()
        self._interrupted = now
        self.show_message("ctrl+c again leaves (the run continues)")
        self.paint()

    def action_help(self) -> None:
        view = self.session.view
        self.push_screen(HelpScreen(self.palette, view.glyphs, read_only=view.read_only))

    def _panel(self) -> str:
        """The panel that moves act on."""
        view = self.session.view
        if view.name == "envs" and self.session.state.is_published:
            return "metrics"
        return view.focus if view.name == "envs" else view.name

    def action_digit(self, digit: int) -> None:
        view = self.session.view
        if view.typing is not None:
            self._type_digit(digit)
        else:
            for panel in PANELS.views:
                if panel.key == str(digit):
                    view.show_view(panel.name)
        self.paint()

    def _type_digit(self, digit: int) -> None:
        """Another digit of an env's number; the env is selected as soon as no longer number exists."""
        view = self.session.view
        view.typing = f"{view.typing or ''}{digit}"
        last = self.session.state.num_envs - 1
        if int(view.typing) * 10 > last or len(view.typing) >= len(str(last)):
            self._take_typed()

    def _take_typed(self) -> None:
        view = self.session.view
        text, view.typing = view.typing, None
        if text and int(text) < self.session.state.num_envs:
            view.select("envs", int(text))
        elif text:
            self.show_message(f"env {text} does not exist: 0 to {self.session.state.num_envs - 1}")

    def action_next_panel(self, by: int) -> None:
        view = self.session.view
        view.detail = False
        shown = [
            name for _, names in main_columns(PANELS, self.size.width) for name in names if name in VIEWS
        ]
        if view.name == "envs" and len(main_columns(PANELS, self.size.width)) > 1:
            at = shown.index(view.focus) if view.focus in shown else 0
            view.focus = shown[(at + by) % len(shown)]
        else:
            view.show_view(VIEWS[(VIEWS.index(view.name) + by) % len(VIEWS)])
        self.paint()

    def action_enter(self) -> None:
        view = self.session.view
        if view.typing is not None:
            self._take_typed()
        elif view.detail:
            view.detail = False
        elif PANELS[self._panel()].renderer.detail is not None:
            view.focus = self._panel()
            view.detail = view.is_env_chosen = True
        self.paint()

    def action_step_back(self) -> None:
        self.session.view.step_back()
        self.session.view.selected.pop("log", None)
        self.paint()

    def action_move(self, by: int) -> None:
        name = self._panel()
        rows = PANELS[name].renderer.keys(self.body)
        view = self.session.view
        if name == "log":
            self._move_log(list(rows), by)
        elif rows:
            view.move_selection(name, rows, by)
        self.paint()

    def _move_log(self, rows: list[Any], by: int) -> None:
        """The log follows its end until a row is selected, and again from its last row on."""
        view = self.session.view
        if not rows:
            return
        if view.selected.get("log") is None:
            if by < 0:
                view.select("log", rows[max(0, len(rows) - 1 + by)])
            return
        view.move_selection("log", rows, by)
        if by > 0 and view.selected["log"] == rows[-1]:
            del view.selected["log"]

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 8))

    def action_env(self, by: int) -> None:
        self.session.view.move_selection("envs", PANELS["envs"].renderer.keys(self.body), by)
        self.paint()

    def action_type_env(self) -> None:
        self.session.view.typing = ""
        self.paint()

    def action_anomaly(self, by: int) -> None:
        """Select the next one that waits, and its env."""
        state, view = self.session.state, self.session.view
        waiting = state.anomalies.open_records(self.session.feed.now())
        if not waiting:
            self.show_message("every anomaly is acknowledged")
        else:
            chosen = [record.key for record in waiting]
            selected = view.selected.get("anomalies")
            at = chosen.index(selected) + by if selected in chosen else 0 if by > 0 else -1
            record = waiting[at % len(waiting)]
            view.selected["anomalies"] = record.key
            if record.env is not None:
                view.select("envs", record.env)
        self.paint()

    def action_ack(self) -> None:
        record = self.session.panel_inputs().current_anomaly
        if record is None or not record.is_waiting:
            self.show_message("nothing to acknowledge")
        else:
            self.session.state.anomalies.ack(record.key)
            self.session.view.selected.pop("anomalies", None)
            self.show_message(f"acknowledged {record.source} {record.kind} (here only)")
        self.paint()

    def action_ack_all(self) -> None:
        self.show_message(f"acknowledged {self.session.state.anomalies.ack_all()} (here only)")
        self.paint()

    def action_mute(self) -> None:
        record = self.session.panel_inputs().current_anomaly
        if record is None:
            self.show_message("nothing to mute")
        else:
            silent = self.session.state.anomalies.mute(record.key, self.session.feed.now())
            self.show_message(
                f"{record.source} {record.kind} {'muted for 10 minutes' if silent else 'no longer muted'}"
            )
        self.paint()

    def action_sort(self) -> None:
        self.session.view.cycle_sort()
        self.show_message(f"envs by {self.session.view.sort}")
        self.paint()

    def action_reverse(self) -> None:
        self.session.view.is_reversed = not self.session.view.is_reversed
        self.paint()

    def action_env_layout(self) -> None:
        self.session.view.cycle_env_layout(self.session.state.num_envs)
        self.paint()

    def action_log_filter(self) -> None:
        self.session.view.cycle_log_filter()
        self.session.view.selected.pop("log", None)
        self.show_message(f"log: {self.session.view.log_filter}")
        self.paint()

    def action_zoom(self, by: int) -> None:
        inputs = self.body
        self.session.view.zoom(by, inputs.age)
        self.show_message(f"charts show {self.body.window_name}")
        self.paint()

    def action_freeze(self) -> None:
        view = self.session.view
        if self.frozen is None:
            now = self.session.panel_inputs()
            self.frozen = PanelInputs(now.state.frozen_copy(), view, now.link, now.now)
            view.num_arrived = 0
        else:
            self.frozen = None
        view.is_frozen = self.frozen is not None
        self.paint()

    def action_rate(self) -> None:
        self.session.view.cycle_rate()
        self.show_message(f"{self.session.view.rate:g} frames per second")
        self.paint()

    def action_glyphs(self) -> None:
        self.session.view.toggle_glyphs()
        self.paint()

    def action_write_screen(self) -> None:
        """Write the screen as SVG and as text into the working directory."""
        width, height = self.size
        stem = Path(f"esper-{self.session.link.name or 'overwatch'}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            svg = self.export_screenshot(title=f"esper-tui {self.session.link.name or ''}")
            stem.with_suffix(".svg").write_text(self_contained(svg), encoding="utf-8")
            text = self.screen_layout(width, height).text(width, height)
            stem.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.show_message(f"no screenshot: {stem}: {error.strerror}")
        else:
            self.show_message(f"wrote {stem}.svg and .txt")
        self.paint()

    def action_ask(self, name: str) -> None:
        """Ask before a command is sent; see `screens.questions`."""
        link = self.session.link
        question = QUESTIONS[name](self.session.state)
        if name in OF_TRAININGS and self.session.state.is_published:
            self.show_message(f"a published run does not have the command {question.method}")
            self.paint()
            return
        if link.is_replay or link.state not in ("live", "slow", "stale"):
            self.show_message(f"{question.method}: not sent, no daemon is connected ({link.label})")
            self.paint()
            return
        screen = ConfirmScreen(
            question.text,
            f"run {link.name}: {question.consequence}",
            self.palette,
            self.session.view.glyphs,
        )
        self.push_screen(screen, self._when_confirmed(question.method, question.params))

    def _when_confirmed(self, method: str, params: dict[str, Any]) -> Callable[[bool | None], None]:
        def answer(yes: bool | None) -> None:
            if yes:
                self.session.send(method, params)
                self.session.view.message = ""
            else:
                self.show_message(f"{method}: not sent")
            self.paint()

        return answer
