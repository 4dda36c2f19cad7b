"""Every view in every state of the run, the link and the terminal, laid out for tests of its styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import ScreenLayout, compose_screen
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState

from .harness import folded, panel_inputs
from .record import recorded_events
from .scenes import FRAMES, published_state, real_state

MOMENT = (6, 14)
"""Round and epoch of the real run in most states."""


@dataclass
class Snapshot:
    """A state and how it is made."""

    make: Callable[[ViewState], PanelInputs]
    options: dict[str, object] = field(default_factory=dict)
    """Of the view."""
    earlier: Callable[[], State] | None = None
    """The state that the panels show where the cursor is held."""


@cache
def _until(round_: int, epoch: int) -> State:
    """The real run at the end of an epoch."""
    return folded(takewhile(lambda e: (e.ctx.round, e.ctx.epoch) <= (round_, epoch), recorded_events()))


def _real(view: ViewState, **link: object) -> PanelInputs:
    return panel_inputs(_until(*MOMENT), view, name="digits-8", **link)


def _ended(view: ViewState) -> PanelInputs:
    return panel_inputs(
        real_state(),
        view,
        state="ended",
        name="digits-8",
        age_seconds=None,
        outcome="STOPPED",
        stopped_by="uid 1000",
        advice="esper-daemon start --detach --resume digits-8",
    )


def _stale(view: ViewState) -> PanelInputs:
    made = _real(view, state="stale", age_seconds=7.2)
    made.now += 7 * SECOND
    return made


def _made(name: str, view: ViewState) -> PanelInputs:
    """A run that was not recorded: one of so many envs would be too large to keep."""
    return panel_inputs(FRAMES[name]().state, view)


def _empty(view: ViewState) -> PanelInputs:
    made = FRAMES["empty"]()
    made.view = view
    return made


SNAPSHOTS: dict[str, Snapshot] = {
    "live": Snapshot(_real),
    "empty": Snapshot(_empty),
    "stale": Snapshot(_stale),
    "lost": Snapshot(partial(_real, state="lost", age_seconds=47.0)),
    "ended": Snapshot(_ended),
    "frozen": Snapshot(
        _real, options={"is_frozen": True, "num_arrived": 702}, earlier=partial(_until, 4, 10)
    ),
    "recording": Snapshot(partial(_real, state="replay", is_replay=True, replay_speed=5.0)),
    "read-only": Snapshot(_real, options={"read_only": True}),
    "ascii": Snapshot(_real, options={"glyphs": ASCII}),
    "1-env": Snapshot(partial(_made, "one-env")),
    "16-envs": Snapshot(partial(_made, "ended")),
    "64-envs": Snapshot(partial(_made, "grid-64")),
    "256-envs": Snapshot(partial(_made, "envs-256")),
    "foreign": Snapshot(lambda view: panel_inputs(published_state(), view, name="my-loop")),
}


def views_of(name: str) -> list[str]:
    """The views that a state has."""
    made = SNAPSHOTS[name].make(ViewState())
    return [one.name for one in PANELS.of(is_published=made.state.is_published).views]


def layouts(name: str, width: int, height: int) -> Iterator[tuple[str, ScreenLayout]]:
    """Every view of a state, drawn."""
    snapshot = SNAPSHOTS[name]
    for view_name in views_of(name):
        view = ViewState(**snapshot.options)  # type: ignore[arg-type]
        PANELS.show(view, view_name)
        live = body = snapshot.make(view)
        if snapshot.earlier is not None:
            then = snapshot.earlier()
            body = PanelInputs(then, view, live.link, then.ts)
        yield view_name, compose_screen(PANELS, live, body, width, height)
