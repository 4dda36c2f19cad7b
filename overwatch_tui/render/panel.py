"""Inputs and outputs of panels, and the table of all panels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from esper_overwatch.overwatch_tui.keys import shown_key
from esper_overwatch.overwatch_tui.model.curves import Curves
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import History
from esper_overwatch.overwatch_tui.source.link_status import LinkStatus

from .chart_axis import CLOCK, ROUNDS, STEPS, ChartAxis, axis_kinds, step_axis
from .chart_view import OVER_RUNS
from .lines import Line
from .plot import Series, chart, sparkline
from .theme import Glyphs
from .view_state import WINDOWS, Scroll, ViewState
from .views import PanelGroup

_T = TypeVar("_T")


@dataclass
class PanelInputs:
    """One moment of everything that can be on the screen."""

    state: State
    view: ViewState
    link: LinkStatus
    now: int
    """Wall time of the daemon, microseconds: the right edge of every chart."""
    is_alone: bool = True
    """True if the panel that is drawn has the screen to itself."""
    focus: str = ""
    """The panel that moves and Enter act on; empty = the one that is drawn."""
    kept: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that several panels compute of this moment, or one panel several times; see `keep`."""

    def keep(self, key: Hashable, compute: Callable[[], _T]) -> _T:
        """The value of a key, computed once per moment; nobody may change it."""
        if key not in self.kept:
            self.kept[key] = compute()
        found: _T = self.kept[key]
        return found

    def empty_text(self, panel: str, row: str, otherwise: str) -> str:
        """Text of an empty list; if a filter hides its rows, with the key that shows them where that does."""
        view = self.view
        if panel not in view.filters:
            return otherwise
        is_in_the_way = view.charts.is_moved or view.detail
        hint = f"; {shown_key(view.keys, 'step_back')} shows all"
        is_focused = self.focus in (panel, "")
        return f"no {row} passes {view.filter_note(panel)}{hint if is_focused and not is_in_the_way else ''}"

    @property
    def glyphs(self) -> Glyphs:
        return self.view.glyphs

    @cached_property
    def age(self) -> int:
        """Age of the oldest value in any chart, microseconds."""
        firsts = [h.first_ts for h in self.state.curves.histories.values() if h.first_ts]
        return max(0, self.now - min(firsts)) if firsts else 0

    @property
    def window_name(self) -> str:
        """Span of sparklines, and of charts by time, such as `15m`."""
        return ChartAxis(self.now, self.window).name

    @property
    def window(self) -> int:
        """Span of every chart, microseconds."""
        return WINDOWS[self.view.window_index(self.age)]

    @property
    def axis_kind(self) -> str:
        """Kind of the charts' axis: chosen, or by step for published runs and where runs are compared."""
        charts, curves = self.view.charts, self.own_curves
        if charts.axis in axis_kinds(curves):
            return charts.axis
        is_by_step = charts.overlay == OVER_RUNS or not curves.epochs_per_round
        return STEPS if is_by_step and curves.first_step is not None else CLOCK

    @property
    def own_curves(self) -> Curves:
        """Curves of the run that reach back furthest: where it is compared those of its journal."""
        watched = self.view.charts.watched if self.view.charts.overlay == OVER_RUNS else None
        return self.state.curves if watched is None or not watched.curves.histories else watched.curves

    @cached_property
    def axis(self) -> ChartAxis:
        """Span of every chart, up to this moment or up to the edge that the operator has chosen."""
        charts, kind = self.view.charts, self.axis_kind
        if kind in (STEPS, ROUNDS):
            return self._step_axis(charts.end)
        end, begin = charts.end, charts.begin or self.now - self.age
        return ChartAxis(self.now if end is None else end, self.window, end is not None, kind, begin)

    def _step_axis(self, end: int | None) -> ChartAxis:
        charts, by_round = self.view.charts, self.axis_kind == ROUNDS
        laid_over = charts.runs if charts.overlay == OVER_RUNS else []
        others = max((run.curves.max_step for run in laid_over), default=0)
        return step_axis(self.own_curves, by_round=by_round, zoom=charts.step_zoom, end=end, others=others)

    @property
    def axis_ends(self) -> tuple[int, int, int]:
        """(right edge, window, age of the oldest value) of charts that nobody has moved, in the axis's
        unit.
        """
        if not self.axis.is_by_step:
            return self.now, self.window, self.age
        axis = self._step_axis(None)
        return axis.now, axis.window, axis.now

    def sparkline(self, name: str, width: int, *, low: float | None = None, high: float | None = None) -> str:
        """A sparkline of one of the state's histories; see `plot.sparkline`."""
        axis = ChartAxis(self.now, self.window)
        return sparkline(self.history(name), width, axis, self.glyphs, low=low, high=high)

    def chart(self, series: Sequence[Series], width: int, height: int, **options: Any) -> list[Line]:
        """A chart over the chosen window, its limits, floor and form among the options; see `plot.chart`."""
        view = self.view.charts
        options |= {"is_log": view.is_log, "at": view.at, "memory": view.memory}
        return chart(series, width, height, self.axis, self.glyphs, **options)

    def history(self, name: str) -> History | None:
        """The course of a signal; None before its first value."""
        return self.state.curves.histories.get(name)

    def course(self, name: str) -> History | None:
        """The course of a signal as charts draw it: by time, or by step."""
        own = self.own_curves
        curves = own if name in own.histories else self.state.curves
        return curves.steps.get(name) if self.axis.is_by_step else curves.histories.get(name)

    @property
    def epoch(self) -> int:
        """The newest of the round that the run is in; 0 until the round has one."""
        state = self.state
        return state.epoch_ctx.epoch if state.epoch_ctx.round == state.ctx.round else 0

    @property
    def run_word(self) -> str | None:
        """State of the run: what became of it where that is known, else what it said last."""
        return self.link.outcome or self.state.run_state or self.link.trainer

    def seconds_since(self, ts: int) -> float | None:
        """Seconds since a wall time; None where there is none."""
        return (self.now - ts) / 1e6 if ts else None


class Drawn(NamedTuple):
    """Lines of a panel, and changes of the view that follow from them."""

    lines: list[Line]
    """Lines, which may be fewer than the height asked for; more are cut."""
    scroll: Scroll | None = None
    """The rows that were drawn, where the panel has more than fit: the next drawing begins there."""
    env: int | None = None
    """The env that was drawn in full, which is the selected one from now on."""


class Renderer(NamedTuple):
    """The functions that draw a panel from its inputs, which they do not change."""

    title: Callable[[PanelInputs], str]
    body: Callable[[PanelInputs, int, int], Drawn]
    """(inputs, width, height) -> lines."""
    needs: Callable[[PanelInputs, int], tuple[int, int]]
    """(inputs, width) -> least and preferred number of lines, title not counted; none = left out."""
    note: Callable[[PanelInputs], str] = lambda _: ""
    """Text at the right of the title: order, filter, position."""
    keys: Callable[[PanelInputs], Sequence[Hashable]] = lambda _: ()
    """Keys of the rows that can be selected, in their order."""
    detail: Callable[[PanelInputs, int, int], Drawn] | None = None
    """Details of the selected row, shown by Enter."""
    fields: Callable[[PanelInputs], Sequence[str]] = lambda _: ()
    """Names that a filter of its rows may use; none = its rows cannot be filtered."""
    charts: Callable[[PanelInputs], Sequence[str]] = lambda _: ()
    """Names of the curves of the selected row, which Enter shows as charts."""
    records: Callable[[PanelInputs], Sequence[Mapping[str, FieldValue]]] = lambda _: ()
    """Rows that the filter shows, with all their fields, for an export."""
    grows: bool = False
    """True if it takes the lines that no panel of its column asks for; else the last panel does."""
    orders: tuple[str, ...] = ()
    """Names of the columns that `s` sorts its rows by, one after the other."""
    is_newest_last: bool = False
    """True if its last row is the newest: over a slow link its lines are sent upwards."""
    num_waiting: Callable[[PanelInputs], int] = lambda _: 0
    """Number of rows that wait for the operator, highlighted in the tab of its view."""


class PanelTable(dict[str, Renderer]):
    """All panels by name, and the views; `published` stands in for published runs."""

    def __init__(
        self, panels: Mapping[str, Renderer], views: Sequence[PanelGroup], published: PanelTable | None = None
    ) -> None:
        super().__init__(panels)
        self._published = published
        self.views = tuple(views)

    def of(self, *, is_published: bool) -> PanelTable:
        """The table for a run of that kind."""
        return self._published if is_published and self._published is not None else self

    def view(self, name: str) -> PanelGroup:
        """The view of a name; the first one where there is none."""
        return next((view for view in self.views if view.name == name), self.views[0])

    def view_with(self, name: str) -> PanelGroup | None:
        """The view that has this name, else the first one with a panel of it."""
        found = (view for view in self.views if view.name == name)
        return next(found, next((view for view in self.views if name in view.one), None))

    def focused(self, view: ViewState) -> str:
        """The panel that moves and Enter act on: the chosen one, else the first of the view."""
        panels = self.view(view.name).one
        return view.focus if view.focus in panels else panels[0]

    def show(self, view: ViewState, name: str) -> None:
        """Show a view, or the view of a panel, which then has the focus."""
        found = self.view_with(name) or self.views[0]
        view.show_view(found.name, name if name in found.one[1:] else "")
