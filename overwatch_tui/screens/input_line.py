"""A line at the bottom to type in, with what completes and explains it; the panels stay in sight."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from textual import events
from textual.app import App, ComposeResult
from textual.screen import ModalScreen

from esper_overwatch.overwatch_tui.model.filters import FilterError, parse_filter
from esper_overwatch.overwatch_tui.render.lines import CUT, Line, Row, plain, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import Glyphs, Theme
from esper_overwatch.overwatch_tui.render.view_state import ViewState

from .line_widget import LinePanel

MAX_TEXT = 400
HEIGHT = 3


def type_filter(
    app: App[Any],
    view: ViewState,
    panel: str,
    fields: Sequence[str],
    such_as: str,
    theme: Theme,
    then: Callable[[], None],
) -> None:
    """Type which rows of a panel are shown; an empty line shows all. `then` draws them."""

    def check(text: str) -> str:
        try:
            parse_filter(text, fields)
        except FilterError as error:
            return str(error)
        return ""

    def take(text: str | None) -> None:
        if text is not None:
            view.filters.pop(panel, None)
            if (chosen := parse_filter(text, fields)) is not None:
                view.filters[panel] = chosen
        then()

    old = view.filters.get(panel)
    about = f"{' '.join(fields)}   {such_as}; empty shows all"
    text = old.text if old else ""
    app.push_screen(InputLine("/", lambda _: about, theme, view.glyphs, text=text, check=check), take)


class InputLine(ModalScreen[str | None]):
    """Ends with the text, or with None where Esc left it.

    Args:
        explain: what to say about the text so far.
        complete: what the text can become; Tab goes through them.
        history: earlier lines, the newest last; Up goes through them.
        check: what is wrong with a text that is to be taken; empty = nothing.
    """

    AUTO_FOCUS = ""
    types_text = True

    def __init__(
        self,
        prompt: str,
        explain: Callable[[str], str],
        theme: Theme,
        glyphs: Glyphs,
        *,
        text: str = "",
        complete: Callable[[str], Sequence[str]] = lambda _: (),
        history: Sequence[str] = (),
        check: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__()
        self._panel = LinePanel(theme, id="input")
        self._glyphs = glyphs
        self._prompt = prompt
        self._explain = explain
        self._complete = complete
        self._check = check
        self._history = [*history, text]
        self._at = len(history)
        """Index of the line of the history that is shown."""
        self._choices: list[str] = []
        """Texts that Tab goes through, and the text that it began with."""
        self._problem = ""
        self.text = text

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_resize(self) -> None:
        width, height = self.size
        tall = HEIGHT + self._rows_above(height)
        self._panel.styles.width, self._panel.styles.height = width, tall
        self._panel.styles.offset = (0, height - tall)
        self._draw()

    def _rows_above(self, height: int) -> int:  # noqa: ARG002
        """Rows above the line and what is said of it."""
        return 0

    def _draw(self) -> None:
        self._panel.show_lines(self._bottom(self.size.width))

    def _bottom(self, width: int) -> list[Line]:
        """What there is to say, and the line itself."""
        room = width - len(self._prompt) - 3
        shown = self.text if len(self.text) <= room else CUT + self.text[1 - room :]
        line = Row("bar").put(f" {self._prompt}", "key").put(shown, "bold").put("_", "key")
        return sign_cuts([*self._about(width), line.line(width)], self._glyphs.cut)

    def _about(self, width: int) -> list[Line]:
        """The two lines above: what Tab offers and what there is to say, or that alone."""
        text = self._problem or self._explain(self.text)
        style = "warning" if self._problem else "dim"
        offers = self._offers(width)
        if plain(offers).strip():
            return [offers, Row().put(" ").put(text, style).line(width)]
        first, *more = textwrap.wrap(text, max(20, width - 2), break_on_hyphens=False) or [""]
        rows = [first, " ".join(more)] if more else ["", first]
        return [Row().put(" ").put(row, style).line(width) for row in rows]

    def _offers(self, width: int) -> Line:
        """The last words that Tab offers, as many as fit; the chosen one stands out."""
        row = Row()
        for choice in self._choices or self._complete(self.text):
            word = choice.rstrip().rpartition(" ")[2]
            if row.width + len(word) + 2 > width:
                row.to(width - 1).put(CUT, "dim")
                break
            row.put(" ").put(word, "tab" if choice == self.text else "accent").put(" ")
        return row.line(width)

    def on_paste(self, event: events.Paste) -> None:
        """Take the printable part of the first line; terminals end lines with CR."""
        event.stop()
        self._type("".join(c for c in "".join(event.text.splitlines()[:1]) if c.isprintable()))

    def on_key(self, event: events.Key) -> None:
        if not self.is_current:
            return  # it was typed behind the key that closed the line, and is for what is under it
        event.stop()
        event.prevent_default()
        match event.key:
            case "escape" | "ctrl+c":
                self.dismiss(None)
            case "enter":
                self._take()
            case "tab":
                self._next_choice(1)
            case "shift+tab":
                self._next_choice(-1)
            case "up":
                self._recall(-1)
            case "down":
                self._recall(1)
            case "backspace":
                self._set(self.text[:-1])
            case "ctrl+w":
                self._set(self.text.rstrip().rpartition(" ")[0])
            case "ctrl+u":
                self._set("")
            case _:
                if event.character is not None and event.is_printable:
                    self._type(event.character)

    def _type(self, text: str) -> None:
        self._set((self.text + text)[:MAX_TEXT])

    def _set(self, text: str) -> None:
        self.text, self._choices, self._problem = text, [], ""
        self._draw()

    def _next_choice(self, by: int) -> None:
        """Tab and Shift-Tab: the next text that the one typed can become; a single one is simply taken."""
        if self.text in self._choices:
            at = self._choices.index(self.text) + by
        else:
            self._choices = [*self._complete(self.text)]
            at = 0 if by > 0 else -1
        if self._choices:
            self.text, self._problem = self._choices[at % len(self._choices)], ""
        if len(self._choices) == 1:
            self._choices = []
        self._draw()

    def _recall(self, by: int) -> None:
        self._history[self._at] = self.text
        self._at = min(len(self._history) - 1, max(0, self._at + by))
        self._set(self._history[self._at])

    def _take(self) -> None:
        self._problem = "" if self._check is None else self._check(self.text)
        if self._problem:
            self._draw()
        else:
            self.dismiss(self.text)
