"""The operator's choices: view, selection, order, time window, frozen or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from esper_overwatch.overwatch_tui.keys import ACTIONS, Key
from esper_overwatch.overwatch_tui.model.filters import Fields, Filter
from esper_overwatch.overwatch_tui.model.time_series import SECOND

from .chart_view import ChartView
from .theme import UNICODE, Glyphs

MAIN_VIEW = "run"
"""The view that Esc leads back to."""
SORTS = ("attention", "env", "accuracy", "change", "return", "gradient", "drift")
REFRESH_RATES = (0.5, 1.0, 2.0, 4.0)
"""Frames per second."""
WINDOWS = tuple(minutes * 60 * SECOND for minutes in (1, 2, 5, 15, 60, 360, 1440, 10_080))
"""Spans of charts by time: a minute to a week."""
MAX_AUTO_WINDOW = 3
"""Index of the longest window that is chosen automatically: 15 min."""
MESSAGE_SECONDS = 6.0


class Scroll(NamedTuple):
    """The rows of a panel that are on the screen."""

    start: int
    height: int
    """Number of rows that fit, even where there are fewer."""
    top: int = 0
    """Line of the panel that the first of them is on."""

    @property
    def rows(self) -> slice:
        """Slice of the panel's keys."""
        return slice(self.start, self.start + self.height)


@dataclass
class ViewState:
    """Changed by keys, read by panels."""

    name: str = MAIN_VIEW
    focus: str = ""
    """The panel that moves and Enter act on; one that the view does not have = its first."""
    detail: bool = False
    selected: dict[str, Hashable] = field(default_factory=dict)
    """Per panel, the key of the selected row; a panel without one shows its newest or worst."""
    marked: list[Hashable] = field(default_factory=list)
    """Keys of the runs of the list that are marked, in the order of their letters."""
    scroll: dict[str, Scroll] = field(default_factory=dict)
    """Per panel, the rows that were drawn last."""
    env: int = 0
    is_env_chosen: bool = False
    """True if the operator chose the env; until then the one that needs attention most is selected."""
    sort: str = "attention"
    is_reversed: bool = False
    window: int | None = None
    """Index into WINDOWS; None = by the age of the data."""
    charts: ChartView = field(default_factory=ChartView)
    orders: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Per panel: the column that it is sorted by, and whether turned round."""
    filters: dict[str, Filter] = field(default_factory=dict)
    """Per panel, what its list shows; a panel without one shows all."""
    is_frozen: bool = False
    num_arrived: int = 0
    """Events after the moment that is shown."""
    seeking: str = ""
    """Progress of the cursor on its way to another moment; empty where it is on none."""
    rate: float = 1.0
    glyphs: Glyphs = UNICODE
    has_colour: bool = False
    """True where the lines are for a terminal with colours, which pictures need."""
    read_only: bool = False
    keys: tuple[Key, ...] = ACTIONS
    """Keys as the operator has chosen them."""
    is_new: bool = False
    """True on the first start: nothing was ever typed into the palette."""
    message: str = ""
    message_until: float = 0.0
    """End of the message on the monotonic clock, seconds."""

    def show_view(self, name: str, focus: str = "") -> None:
        self.name, self.focus = name, focus
        self.detail = False
        self.charts.names = ()

    def order(self, panel: str) -> tuple[int, bool]:
        """(column, turned round) of a table."""
        return self.orders.get(panel, (0, False))

    @property
    def lists_incidents(self) -> bool:
        """True where keys act on the listed incidents; elsewhere they act on all of them."""
        return self.name == "problems" or self.focus == "incidents"

    @property
    def opened_env(self) -> int | None:
        """The env whose page is open; None where there is none."""
        is_env = self.name == MAIN_VIEW and self.focus in ("", "envs", "env")
        return self.env if self.detail and is_env and not self.charts.names else None

    def passes(self, panel: str, fields: Callable[[], Fields]) -> bool:
        """True if a panel's filter shows a row, whose fields are asked for where there is a filter."""
        chosen = self.filters.get(panel)
        return chosen is None or chosen.passes(fields())

    def filter_note(self, panel: str) -> str:
        """The panel's filter, as its title shows it."""
        chosen = self.filters.get(panel)
        return "" if chosen is None else f"/{chosen.text}"

    def step_back(self, panel: str) -> bool:
        """Take one step out of the panel that moves act on; False where there is none."""
        if self.charts.let_go():
            pass
        elif self.charts.names:
            self.charts.names = ()
        elif self.detail:
            self.detail = False
        elif panel in self.filters:
            del self.filters[panel]
        elif self.name != MAIN_VIEW or self.focus:
            self.show_view(MAIN_VIEW)
        else:
            self.is_env_chosen = False
            return False
        return True

    def move_selection(self, panel: str, keys: Sequence[Hashable], by: int) -> None:
        """Move the selection of a panel by `by` rows, within its ends."""
        if keys:
            self.select(panel, keys[min(len(keys) - 1, max(0, self.selected_index(panel, keys) + by))])

    def select(self, panel: str, key: Hashable) -> None:
        """Select a row of a panel; a row of the envs is the selected env."""
        self.selected[panel] = key
        if panel == "envs":
            assert isinstance(key, int)
            self.env, self.is_env_chosen = key, True
        elif panel == "seeds" and isinstance(key, tuple):
            self.env, self.is_env_chosen = key[0], True  # the layers beside the list are of this env

    def selected_index(self, panel: str, keys: Sequence[Hashable]) -> int:
        """Row of the selection; the first where what was selected is gone."""
        wanted: Hashable = self.env if panel == "envs" else self.selected.get(panel)
        try:
            return keys.index(wanted)
        except ValueError:
            return 0

    def row_at(self, panel: str, count: int, y: int) -> int | None:
        """Index of the one of `count` rows that a line of a panel shows; None where it shows none."""
        scroll = self.scroll.get(panel)
        if scroll is None or y < scroll.top or y - scroll.top >= min(scroll.height, count - scroll.start):
            return None
        return scroll.start + y - scroll.top

    def visible_rows(self, panel: str, keys: Sequence[Hashable], height: int, *, top: int) -> Scroll:
        """The `height` rows to draw from line `top` on, the selected one among them; they move little."""
        at = self.selected_index(panel, keys)
        last = self.scroll[panel].start if panel in self.scroll else 0
        start = min(max(last, at - height + 1), at, max(0, len(keys) - height))
        return Scroll(max(0, start), max(0, height), top)

    def keep(self, scroll: Mapping[str, Scroll], env: int | None) -> None:
        """Take over what was drawn: the next drawing begins there."""
        self.scroll.update(scroll)
        if env is not None:
            self.env, self.is_env_chosen = env, True

    def cycle_sort(self) -> None:
        """Turn the order round, then the next one."""
        at, self.is_reversed = _next_order(SORTS.index(self.sort), self.is_reversed, len(SORTS))
        self.sort = SORTS[at]

    def cycle_order(self, panel: str, count: int) -> int:
        """The same for a table with `count` columns; returns the index of the one it is sorted by."""
        self.orders[panel] = _next_order(*self.order(panel), count)
        return self.orders[panel][0]

    def decrease_rate(self) -> bool:
        """The next lower rate; False at the lowest."""
        at = REFRESH_RATES.index(self.rate)
        self.rate = REFRESH_RATES[max(0, at - 1)]
        return at > 0

    def zoom(self, by: int, age: int) -> None:
        """Widen (+1) or narrow (-1) the time that charts show."""
        self.window = min(len(WINDOWS) - 1, max(0, self.window_index(age) + by))

    def window_index(self, age: int) -> int:
        """The chosen window, or the smallest that holds data of an age in microseconds, up to 15 min."""
        if self.window is not None:
            return self.window
        fits = (i for i, us in enumerate(WINDOWS[: MAX_AUTO_WINDOW + 1]) if us >= age)
        return next(fits, MAX_AUTO_WINDOW)

    def show_message(self, message: str) -> None:
        """Show a message in the footer for a few seconds."""
        self.message, self.message_until = message, time.monotonic() + MESSAGE_SECONDS

    def expire_message(self) -> None:
        if self.message and time.monotonic() > self.message_until:
            self.message = ""


def _next_order(at: int, is_reversed: bool, count: int) -> tuple[int, bool]:
    """The order after this one: each but the first, which is the usual one, comes both ways round."""
    return (at, True) if at and not is_reversed else ((at + 1) % count, False)
