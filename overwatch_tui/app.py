"""The terminal: a timer drains the feed, keys change the view, the main screen shows the picture."""

from __future__ import annotations

import math
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.events import Resize

from . import keys
from .compose import MIN_HEIGHT, MIN_WIDTH, Picture, columns_of, compose
from .frame import Frame
from .panels import PANELS
from .panels.bars import current_anomaly
from .screens.confirm import ConfirmScreen
from .screens.help import HelpScreen
from .screens.main import MainScreen
from .screenshot import self_contained
from .session import Session
from .theme import Theme
from .view import VIEWS

DRAIN_S = 1 / 30
ESCALATE_EPOCHS = 5
PROFILE_EPOCHS = 2
TWICE_S = 2.0
FULL_S = 0.1
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
        self.frozen: Frame | None = None
        """What the panels show while frozen."""
        self._paint_at = 0.0
        self._interrupted = -TWICE_S
        self._full_since: float | None = None
        """Since when the terminal has taken nothing; infinite once the rate has been halved for it."""

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.palette)

    def on_mount(self) -> None:
        self.set_interval(DRAIN_S, self.tick)

    def on_resize(self, _: Resize) -> None:
        self.call_next(self.paint)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Read-only has no commands: their keys do nothing."""
        if self.session.view.read_only and action in keys.COMMANDS:
            return False
        return super().check_action(action, parameters)

    # --- collecting and painting -------------------------------------------------------------------

    def tick(self) -> None:
        """Take in what has come; paint when it is time."""
        events = self.session.tick()
        if self.frozen is not None:
            self.session.view.arrived += events
        if not self.session.changed and time.monotonic() < self._paint_at:
            return
        if self._terminal_is_full():
            self._slow_down()
            return
        self._full_since = None
        self.session.changed = False
        self.paint()

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
        elif now - self._full_since > FULL_S and self.session.view.slower():
            self._full_since = math.inf
            self.say(f"slow link: {self.session.view.rate:g} pictures per second (r for more)")

    def paint(self) -> None:
        """Show this moment."""
        self._paint_at = time.monotonic() + 1.0 / self.session.view.rate - DRAIN_S / 2
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        width, height = self.size
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            main.show_too_small(width, height)
        else:
            main.show_picture(self.picture(width, height))

    def picture(self, width: int, height: int) -> Picture:
        """The picture at some size, without showing it."""
        live = self.session.frame()
        return compose(live, self.frozen or live, width, height)

    @property
    def body(self) -> Frame:
        """What the panels show: this moment, or the frozen one."""
        return self.frozen or self.session.frame()

    def say(self, message: str) -> None:
        self.session.view.say(message)

    # --- leaving and help --------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def action_help_quit(self) -> None:
        """ctrl+c: the second one within two seconds leaves."""
        now = time.monotonic()
        if now - self._interrupted < TWICE_S:
            self.exit()
        self._interrupted = now
        self.say("ctrl+c again leaves (the run goes on)")
        self.paint()

    def action_help(self) -> None:
        view = self.session.view
        self.push_screen(HelpScreen(self.palette, view.glyphs, read_only=view.read_only))

    # --- views and moving --------------------------------------------------------------------------

    def _panel(self) -> str:
        """The panel that moves act on."""
        view = self.session.view
        return view.focus if view.name == "envs" else view.name

    def action_digit(self, digit: int) -> None:
        view = self.session.view
        if view.typing is not None:
            self._type_digit(digit)
        elif 1 <= digit <= len(VIEWS):
            view.show(VIEWS[digit - 1])
        self.paint()

    def _type_digit(self, digit: int) -> None:
        """Another digit of an env's number; it is taken as soon as no longer one can be meant."""
        view = self.session.view
        view.typing = f"{view.typing or ''}{digit}"
        last = self.session.state.envs - 1
        if int(view.typing) * 10 > last or len(view.typing) >= len(str(last)):
            self._take_typed()

    def _take_typed(self) -> None:
        view = self.session.view
        text, view.typing = view.typing, None
        if text and int(text) < self.session.state.envs:
            view.select("envs", int(text))
        elif text:
            self.say(f"there is no env {text}: 0 to {self.session.state.envs - 1}")

    def action_next_panel(self, by: int) -> None:
        view = self.session.view
        view.detail = False
        shown = [name for _, names in columns_of(self.size.width) for name in names if name in VIEWS]
        if view.name == "envs" and len(columns_of(self.size.width)) > 1:
            at = shown.index(view.focus) if view.focus in shown else 0
            view.focus = shown[(at + by) % len(shown)]
        else:
            view.show(VIEWS[(VIEWS.index(view.name) + by) % len(VIEWS)])
        self.paint()

    def action_enter(self) -> None:
        view = self.session.view
        if view.typing is not None:
            self._take_typed()
        elif view.detail:
            view.detail = False
        elif PANELS[self._panel()].detail is not None:
            view.focus = self._panel()
            view.detail = True
        self.paint()

    def action_step_back(self) -> None:
        self.session.view.back()
        self.session.view.selected.pop("log", None)
        self.paint()

    def action_move(self, by: int) -> None:
        name = self._panel()
        rows = PANELS[name].keys(self.body)
        view = self.session.view
        if name == "log":
            self._move_log(list(rows), by)
        elif rows:
            view.move(name, rows, by)
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
        view.move("log", rows, by)
        if by > 0 and view.selected["log"] == rows[-1]:
            del view.selected["log"]

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 8))

    def action_env(self, by: int) -> None:
        self.session.view.move("envs", PANELS["envs"].keys(self.body), by)
        self.paint()

    def action_type_env(self) -> None:
        self.session.view.typing = ""
        self.paint()

    # --- anomalies ---------------------------------------------------------------------------------

    def action_anomaly(self, by: int) -> None:
        """Select the next one that waits, and its env."""
        state, view = self.session.state, self.session.view
        waiting = state.anomalies.open_records(self.session.feed.now())
        if not waiting:
            self.say("no anomaly waits for you")
        else:
            chosen = [record.key for record in waiting]
            selected = view.selected.get("anomalies")
            at = chosen.index(selected) + by if selected in chosen else 0 if by > 0 else -1
            record = waiting[at % len(waiting)]
            view.selected["anomalies"] = record.key
            if record.env is not None:
                view.env = record.env
        self.paint()

    def action_ack(self) -> None:
        record = current_anomaly(self.session.frame())
        if record is None or not record.waiting:
            self.say("nothing to acknowledge")
        else:
            self.session.state.anomalies.ack(record.key)
            self.session.view.selected.pop("anomalies", None)
            self.say(f"acknowledged {record.source} {record.kind} (here only)")
        self.paint()

    def action_ack_all(self) -> None:
        self.say(f"acknowledged {self.session.state.anomalies.ack_all()} (here only)")
        self.paint()

    def action_mute(self) -> None:
        record = current_anomaly(self.session.frame())
        if record is None:
            self.say("nothing to mute")
        else:
            silent = self.session.state.anomalies.mute(record.key, self.session.feed.now())
            self.say(
                f"{record.source} {record.kind} {'muted for 10 minutes' if silent else 'no longer muted'}"
            )
        self.paint()

    # --- looks -------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        self.session.view.cycle_sort()
        self.say(f"envs by {self.session.view.sort}")
        self.paint()

    def action_reverse(self) -> None:
        self.session.view.reverse = not self.session.view.reverse
        self.paint()

    def action_mode(self) -> None:
        self.session.view.cycle_mode(self.session.state.envs)
        self.paint()

    def action_facet(self) -> None:
        self.session.view.cycle_facet()
        self.session.view.selected.pop("log", None)
        self.say(f"log: {self.session.view.facet}")
        self.paint()

    def action_zoom(self, by: int) -> None:
        frame = self.body
        self.session.view.zoom(by, frame.age)
        self.say(f"charts show {self.body.window_name}")
        self.paint()

    def action_freeze(self) -> None:
        view = self.session.view
        if self.frozen is None:
            now = self.session.frame()
            self.frozen = Frame(now.state.frozen(), view, now.link, now.now)
            view.arrived = 0
        else:
            self.frozen = None
        view.frozen = self.frozen is not None
        self.paint()

    def action_rate(self) -> None:
        self.session.view.cycle_rate()
        self.say(f"{self.session.view.rate:g} pictures per second")
        self.paint()

    def action_glyphs(self) -> None:
        self.session.view.toggle_glyphs()
        self.paint()

    def action_shot(self) -> None:
        """Write the screen as SVG and as text into the working directory."""
        width, height = self.size
        stem = Path(f"esper-{self.session.link.name or 'overwatch'}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            svg = self.export_screenshot(title=f"esper-tui {self.session.link.name or ''}")
            stem.with_suffix(".svg").write_text(self_contained(svg), encoding="utf-8")
            text = self.picture(width, height).text(width, height)
            stem.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.say(f"no screenshot: {stem}: {error.strerror}")
        else:
            self.say(f"wrote {stem}.svg and .txt")
        self.paint()

    # --- commands ----------------------------------------------------------------------------------

    def action_escalate(self) -> None:
        self._ask(
            "telemetry.escalate",
            {"level": "DEBUG", "epochs": ESCALATE_EPOCHS},
            f"Escalate telemetry to DEBUG for {ESCALATE_EPOCHS} epochs?",
            "per-layer statistics; falls back by itself",
        )

    def action_profile(self) -> None:
        if self.session.state.profiling is not None:
            self._ask("profiler.stop", {}, "Stop the profiler?", "what it has recorded is written")
            return
        self._ask(
            "profiler.start",
            {"epochs": PROFILE_EPOCHS},
            f"Record a profile of the next {PROFILE_EPOCHS} epochs?",
            "writes a Chrome trace into the run's folder; slows these epochs",
        )

    def action_pause(self) -> None:
        if self.session.state.run_state == "PAUSED":
            self._ask("resume", {}, "Resume the training?", "it goes on at once")
        else:
            self._ask("pause", {}, "Pause the training?", "it stands still after this epoch, until resumed")

    def action_checkpoint(self) -> None:
        self._ask("checkpoint", {}, "Save a checkpoint?", "at the end of this epoch")

    def action_stop(self) -> None:
        self._ask(
            "stop",
            {"mode": "after_epoch", "checkpoint": True},
            "STOP the run after this epoch?",
            "saves a checkpoint; `esper-daemon start --resume NAME` goes on",
        )

    def _ask(self, method: str, params: dict[str, Any], question: str, detail: str) -> None:
        link = self.session.link
        if not link.commands or link.state not in ("live", "slow", "stale"):
            self.say(f"{method}: there is no daemon to tell ({link.word})")
            self.paint()
            return
        self.push_screen(
            ConfirmScreen(question, f"run {link.name}: {detail}", self.palette, self.session.view.glyphs),
            self._when_confirmed(method, params),
        )

    def _when_confirmed(self, method: str, params: dict[str, Any]) -> Callable[[bool | None], None]:
        def answer(yes: bool | None) -> None:
            if yes:
                self.session.send(method, params)
                self.session.view.message = ""
            else:
                self.say(f"{method}: not sent")
            self.paint()

        return answer
