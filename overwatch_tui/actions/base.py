"""Base of all actions: the session, the timer that drains it, and the painting of the main screen."""

from __future__ import annotations

import io
import math
import select
import sys
import time
from pathlib import Path
from weakref import WeakKeyDictionary

from rich.console import RenderableType
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.events import Event, InputEvent, Key, Resize
from textual.screen import Screen
from textual.timer import Timer

from esper_overwatch.overwatch_tui.keys import ACTIONS
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import MIN_HEIGHT, MIN_WIDTH, ScreenLayout, compose_screen
from esper_overwatch.overwatch_tui.render.notifier import TerminalNotifier
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.overwatch_tui.screens.idle_collection import IdleCollection
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.main import MainScreen
from esper_overwatch.overwatch_tui.screens.output_pace import OutputPace
from esper_overwatch.overwatch_tui.screens.paced import ERASE_BELOW, ERASED_FROM, PacedScreen
from esper_overwatch.overwatch_tui.screens.shown_cells import DifferenceUpdate, ShownCells
from esper_overwatch.overwatch_tui.session import Session

TICK_SECONDS = 1 / 30
DOUBLE_PRESS_SECONDS = 2.0
MAX_RUNG = 1000
FULL_TERMINAL_SECONDS = 0.1
"""Time without output after which a terminal counts as one on a slow link."""
RESIZED_SECONDS = 1 / 30
"""Delay of the full drawing after a resize; Textual lays out after 1/120."""


class PaintedApp(App[None]):
    """One session on one terminal, without keys; without `colour` in bold and reverse only."""

    TITLE = "esper overwatch"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session, *, colour: bool = True, theme: str = "dark") -> None:
        super().__init__(ansi_color=True)
        self.session = session
        self.palette = Theme(colour=colour, name=theme)
        session.view.has_colour = colour
        self.pace = OutputPace()
        self.shown = ShownCells()
        self._paint_at = 0.0
        self._interrupted = -DOUBLE_PRESS_SECONDS
        self._full_since: float | None = None
        """Time since which the terminal takes nothing; infinite once the rate has been halved for it."""
        self._resized: Timer | None = None
        self._is_leaving = False
        self._typed_on: WeakKeyDictionary[Key, Screen[object]] = WeakKeyDictionary()
        """Screen that each pending key was typed on."""
        self.notifier = TerminalNotifier()
        self.collection: IdleCollection | None = None
        """Notified of pauses and keys; None where the process is not the terminal's own, as in tests."""
        self._rung: dict[str, None] | None = None
        """(key, since) of what the bell has rung for, in its order; None before the first look."""

    def get_default_screen(self) -> MainScreen:
        return MainScreen(self.palette)

    def on_mount(self) -> None:
        self.set_keymap({key.name: key.keys for key in self.session.view.keys if key not in ACTIONS})
        self.set_interval(TICK_SECONDS, self.tick)
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        self._count_output()

    def _count_output(self) -> None:
        """Count every byte that is written."""
        driver = self._driver
        if driver is None or self.is_headless or self.is_web:
            return
        write = driver.write

        def counted(data: str) -> None:
            self.pace.note_sent(len(data.encode("utf-8", "replace")))
            write(data)

        driver.write = counted  # type: ignore[method-assign]

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Send what a frame changes, and ask the terminal when it has been shown."""
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            self.shown.resize(*self.size)
            limits = (screen.room, screen.rank) if isinstance(screen, PacedScreen) else (None, None)
            update = DifferenceUpdate(renderable, self.shown, *limits)
            super()._display(screen, update)  # type: ignore[arg-type]
            if isinstance(screen, PacedScreen):
                screen.num_owed = self.shown.unsent
        else:
            super()._display(screen, renderable)
        question = self.pace.ask()
        if question and self._driver is not None:
            self.pace.note_sent(-len(question))  # `ask` has counted it
            self._driver.write(question)
            self._driver.flush()

    def erase_below(self) -> None:
        """Blank the panels at once; they are sent line by line after it."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(ERASE_BELOW)
            self.shown.erase_from(ERASED_FROM)

    def on_terminal_supports_synchronized_output(self) -> None:
        """An answer, also to what was asked after a frame."""
        self.pace.answer()

    async def on_event(self, event: Event) -> None:
        """Keys that were typed after the one that leaves have no screen any more that could take them."""
        if self._is_leaving and isinstance(event, InputEvent):
            return
        if isinstance(event, InputEvent) and self.collection is not None:
            self.collection.note_key()
        if isinstance(event, Key) and event.key.startswith("alt+") and self._is_escape_and_key(event.key):
            # Esc and a key at once look like Alt and the key, and tmux sends them so.
            await super().on_event(Key("escape", None))
            name = event.key.removeprefix("alt+")
            if name.startswith("shift+") and event.character:
                name = event.character
            event = Key(name, name if len(name) == 1 else None)
        if isinstance(event, Key) and event.is_forwarded and self._is_of_newer_screen(event):
            event = Key(event.key, event.character)
        if isinstance(event, Key) and not event.is_forwarded and self.screen_stack:
            self._typed_on[event] = self.screen_stack[-1]
        await super().on_event(event)

    def _is_of_newer_screen(self, event: Key) -> bool:
        """True for a key typed before the current screen opened, unless that screen has to be read first."""
        screen = self.screen_stack[-1]
        is_older = self._typed_on.pop(event, screen) is not screen
        return is_older and not getattr(screen, "is_read_first", False)

    def _is_escape_and_key(self, name: str) -> bool:
        """True if Alt and a key mean Esc and the key: not for a chosen key, nor for a letter in a text."""
        is_chosen = any(name in key.keys.split(",") for key in self.session.view.keys)
        types_text = getattr(self.screen_stack[-1], "types_text", False)
        return not is_chosen and (not types_text or name[-1].isdigit())

    def on_resize(self, _: Resize) -> None:
        """Draw all of it: a terminal that was smaller for a moment has cut what it showed."""
        self.shown.forget()
        self.call_next(self.paint)
        if self._resized is None:
            self._resized = self.set_timer(RESIZED_SECONDS, self._draw_resized)

    def _draw_resized(self) -> None:
        """Textual lays out for a new size only; what it has drawn by now is not sent twice."""
        self._resized = None
        if self.screen_stack:
            self.paint()
            self.screen.refresh()

    def tick(self) -> None:
        """Take in new events; paint when it is time."""
        self.session.tick()
        if not self.screen_stack:
            return  # the timer can be faster than the first screen, and slower than the last
        self._main.send_owed()
        if not self.session.needs_paint and time.monotonic() < self._paint_at:
            if self.collection is not None:
                self.collection.note_pause()
            return
        if self._terminal_is_full():
            self._slow_down()
            return
        self._full_since = None
        self.session.needs_paint = False
        self.paint()
        self._ring()

    def _ring(self) -> None:
        """Bell and notification, once for each critical incident that began while a live run was watched."""
        session = self.session
        if not session.link.is_current or session.link.is_replay or not session.link.is_caught_up:
            return
        waiting = session.state.incidents.unseen(session.feed.now())
        critical = {record.key: record for record in waiting if record.data.severity == "critical"}
        if self._rung is None:
            self._rung = {}
        elif new := [record for key, record in critical.items() if key not in self._rung]:
            self.alert(f"esper {session.link.name or ''}".rstrip(), new)
        self._rung.update(dict.fromkeys(critical))
        for old in list(self._rung)[:-MAX_RUNG]:
            del self._rung[old]

    def alert(self, title: str, records: list[IncidentRecord]) -> None:
        """Notify of incidents as this terminal can."""
        worst = records[0].data
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        text = self.notifier.sequence(title, f"{worst.title}: {worst.scope}{more}")
        if text and self._driver is not None:
            self._driver.write(text)
            self._driver.flush()

    def _terminal_is_full(self) -> bool:
        """True while the terminal has not taken all that was sent."""
        stream = sys.__stdout__ if self.is_web else sys.__stderr__
        if self._main.num_owed:
            return True
        if self.is_headless or stream is None:
            return False
        return not select.select([], [stream], [], 0)[1]

    def _slow_down(self) -> None:
        """Paint nothing for now; half as often from now on, once for each time the terminal is full."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        elif now - self._full_since > FULL_TERMINAL_SECONDS and self.session.view.decrease_rate():
            self._full_since = math.inf
            self.show_message(f"slow link: {self.session.view.rate:g} frames per second (:refresh)")

    def paint(self) -> None:
        """Show this moment."""
        self._paint_at = time.monotonic() + 1.0 / self.session.view.rate - TICK_SECONDS / 2
        main = self._main
        width, height = self.size
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            main.show_too_small(width, height)
        else:
            layout = self.screen_layout(width, height)
            main.show_layout(layout)
            self.session.view.keep(layout.scroll, layout.env)
        self._ring()  # only what comes after the first frame rings

    @property
    def _main(self) -> MainScreen:
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    def screen_layout(self, width: int, height: int) -> ScreenLayout:
        """The screen at some size, without showing it."""
        return compose_screen(PANELS, self.session.panel_inputs(), self.body, width, height)

    @property
    def body(self) -> PanelInputs:
        """Inputs of the panels at the moment of the time cursor."""
        return self.session.shown_inputs()

    def show_message(self, message: str) -> None:
        """Show a message in the footer for a few seconds."""
        self.session.view.show_message(message)

    def say(self, message: str) -> None:
        self.show_message(message)
        self.paint()

    def hand_over(self, name: str, text: str) -> str:
        """Write a file that is not there yet into the working folder; a page gives it to its browser instead.

        Returns:
            Where it is.

        Raises:
            OSError: the folder does not take it.
        """
        if self.is_web:
            self.deliver_text(io.StringIO(text), save_filename=name)
            return f"{name}, which the browser has downloaded"
        path = Path.cwd() / name
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        return str(path)

    def action_leave(self) -> None:
        self._is_leaving = True
        self.exit()

    def action_redraw(self) -> None:
        """Send the whole screen: a shell or another program may have written over it."""
        self.shown.forget()
        self.paint()
        self.screen.refresh()

    def show_theme(self, name: str) -> None:
        """Draw everything in the colours of a theme."""
        self.palette.name = name
        for screen in self.screen_stack:
            for panel in screen.query(LinePanel):
                panel.recolour()
