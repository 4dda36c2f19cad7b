"""What the operator has chosen to look at: view, selection, order, window, frozen or not."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .history import SECOND
from .theme import ASCII, UNICODE, Glyphs

_T = TypeVar("_T")

VIEWS = ("envs", "anomalies", "drift", "policy", "seeds", "log", "commands", "system")
"""In the order of their keys 1..8."""
SORTS = ("env", "status", "accuracy", "change", "return", "gradient", "drift")
MODES = ("table", "grid")
FACETS = ("all", "no seeds", "warnings", "commands")
RATES = (0.5, 1.0, 2.0, 4.0)
"""Pictures per second."""
WINDOWS: tuple[tuple[str, int], ...] = (
    ("1m", 60 * SECOND),
    ("2m", 120 * SECOND),
    ("5m", 300 * SECOND),
    ("15m", 900 * SECOND),
    ("1h", 3600 * SECOND),
    ("6h", 6 * 3600 * SECOND),
    ("1d", 86_400 * SECOND),
    ("1w", 7 * 86_400 * SECOND),
)
AUTO_LIMIT = 3
"""The widest window that is chosen by itself: 15 min."""
GRID_FROM = 32
"""So many envs are shown as a grid by default."""
MESSAGE_SHOWN_S = 6.0


@dataclass
class View:
    """Changed by keys, read by panels."""

    name: str = "envs"
    focus: str = "envs"
    """The panel that moves and Enter act on."""
    detail: bool = False
    selected: dict[str, Hashable] = field(default_factory=dict)
    """Per panel, the key of the selected row; a panel without one shows its newest or worst."""
    top: dict[str, int] = field(default_factory=dict)
    """Per panel, the first row shown."""
    env: int = 0
    sort: str = "env"
    reverse: bool = False
    mode: str | None = None
    """Table or grid; None = by the number of envs."""
    window: int | None = None
    """Index into WINDOWS; None = by the age of the data."""
    facet: str = "all"
    frozen: bool = False
    arrived: int = 0
    """Events that came in while frozen."""
    rate: float = 1.0
    glyphs: Glyphs = UNICODE
    read_only: bool = False
    typing: str | None = None
    """Digits of an env number being typed."""
    message: str = ""
    message_until: float = 0.0
    """On the monotonic clock."""

    # --- views and panels --------------------------------------------------------------------------

    def show(self, name: str) -> None:
        """Switch to a view."""
        self.name = self.focus = name
        self.detail = False

    def back(self) -> bool:
        """One step out; False where there is none."""
        if self.typing is not None:
            self.typing = None
        elif self.detail:
            self.detail = False
        elif self.name != "envs" or self.focus != "envs":
            self.show("envs")
        else:
            return False
        return True

    # --- moving ------------------------------------------------------------------------------------

    def move(self, panel: str, keys: Sequence[Hashable], by: int) -> None:
        """Move the selection of a panel by so many rows, within its ends."""
        if keys:
            self.select(panel, keys[min(len(keys) - 1, max(0, self.index(panel, keys) + by))])

    def select(self, panel: str, key: Hashable) -> None:
        self.selected[panel] = key
        if panel == "envs":
            assert isinstance(key, int)
            self.env = key

    def index(self, panel: str, keys: Sequence[Hashable]) -> int:
        """Row of the selection; the first where what was selected is gone."""
        wanted: Hashable = self.env if panel == "envs" else self.selected.get(panel)
        try:
            return keys.index(wanted)
        except ValueError:
            return 0

    def visible(self, panel: str, keys: Sequence[Hashable], height: int) -> tuple[int, int]:
        """(start, stop) of the rows to show: the selected one is among them, and the page moves little."""
        at = self.index(panel, keys)
        top = self.top.get(panel, 0)
        top = min(max(top, at - height + 1), at, max(0, len(keys) - height))
        self.top[panel] = max(0, top)
        return self.top[panel], min(len(keys), self.top[panel] + max(height, 0))

    # --- choices -----------------------------------------------------------------------------------

    def cycle_sort(self) -> None:
        self.sort = _next(SORTS, self.sort)
        self.reverse = False

    def cycle_mode(self, envs: int) -> None:
        self.mode = _next(MODES, self.table_mode(envs))

    def table_mode(self, envs: int) -> str:
        """How the envs are shown."""
        return self.mode or ("grid" if envs >= GRID_FROM else "table")

    def cycle_facet(self) -> None:
        self.facet = _next(FACETS, self.facet)

    def cycle_rate(self) -> None:
        self.rate = _next(RATES, self.rate)

    def slower(self) -> bool:
        """The next lower rate; False at the lowest."""
        at = RATES.index(self.rate)
        self.rate = RATES[max(0, at - 1)]
        return at > 0

    def toggle_glyphs(self) -> None:
        self.glyphs = ASCII if self.glyphs is UNICODE else UNICODE

    def zoom(self, by: int, age: int) -> None:
        """Widen (+1) or narrow (-1) the time that charts show."""
        self.window = min(len(WINDOWS) - 1, max(0, self.window_index(age) + by))

    def window_index(self, age: int) -> int:
        """The chosen window, or the smallest that holds all the data, up to 15 min.

        Args:
            age: of the oldest data, microseconds.
        """
        if self.window is not None:
            return self.window
        fits = (i for i, (_, us) in enumerate(WINDOWS[: AUTO_LIMIT + 1]) if us >= age)
        return next(fits, AUTO_LIMIT)

    def say(self, message: str) -> None:
        """Show a message in the footer for a few seconds."""
        self.message, self.message_until = message, time.monotonic() + MESSAGE_SHOWN_S

    def hush(self) -> None:
        """Take a message away whose time is over."""
        if self.message and time.monotonic() > self.message_until:
            self.message = ""


def _next(choices: Sequence[_T], current: _T) -> _T:
    return choices[(choices.index(current) + 1) % len(choices)]
