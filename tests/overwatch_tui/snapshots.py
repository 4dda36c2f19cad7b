"""Every view, at three sizes, in every state of run, link and terminal: text, styles and SVG, packed.

A file of `golden/states` holds one state at one size, compressed: of each view its text, its styles by row,
and its SVG, of the largest size only the SVG's SHA-256. `python -m tests.overwatch_tui.scenes` writes them
anew and prints what has changed.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from pathlib import Path

import zstandard

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.export import as_svg
from esper_overwatch.overwatch_tui.render.layout import ScreenLayout, compose_screen
from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.theme import ASCII, Theme
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.screenshot import self_contained

from .harness import folded, panel_inputs
from .record import recorded_events
from .scenes import FOLDER, FRAMES, SIZES, published_state, real_state

PACKED = FOLDER / "states"
MOMENT = (6, 14)
"""Round and epoch of the real run in most states."""


@dataclass
class Snapshot:
    """A state: how it is made, and the theme of its SVGs."""

    make: Callable[[ViewState], PanelInputs]
    theme: str = "dark"
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
        farewell="stop by esper-tui",
        outcome="STOPPED",
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
    "light": Snapshot(_real, theme="light"),
    "16-colour": Snapshot(_real, theme="16-colour"),
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
    return [panel.name for panel in PANELS.of(is_published=made.state.is_published).views]


def layouts(name: str, width: int, height: int) -> Iterator[tuple[str, ScreenLayout]]:
    """Every view of a state, drawn."""
    snapshot = SNAPSHOTS[name]
    for view_name in views_of(name):
        view = ViewState(**snapshot.options)  # type: ignore[arg-type]
        view.show_view(view_name)
        live = body = snapshot.make(view)
        if snapshot.earlier is not None:
            then = snapshot.earlier()
            body = PanelInputs(then, view, live.link, then.ts)
        yield view_name, compose_screen(PANELS, live, body, width, height)


def rows_of(layout: ScreenLayout, width: int, height: int) -> list[Line]:
    """The lines of the whole screen."""
    rows = []
    for y in range(height):
        row = Row()
        for box in sorted(layout.boxes, key=lambda each: each.x):
            lines = layout.lines[box.name]
            if box.y <= y < box.y + box.height and y - box.y < len(lines):
                row.to(box.x).add(lines[y - box.y])
        rows.append(row.line(width))
    return rows


def svg_of(rows: list[Line], theme: str) -> str:
    """The screen as `F8` and `E` colour it; the number that Rich makes of the text is left out."""
    made = Theme(name=theme)
    return re.sub(
        r"terminal-\d+", "terminal", self_contained(as_svg(rows, made, "esper-tui"), is_light=made.is_light)
    )


def _styles(row: Line) -> str:
    """The styles of a row and how many columns each has."""
    runs: list[list[object]] = []
    for text, style in row:
        if runs and runs[-1][0] == style:
            runs[-1][1] += len(text)  # type: ignore[operator]
        elif text:
            runs.append([style, len(text)])
    return " ".join(f"{style or '-'}:{count}".replace(" ", "+") for style, count in runs)


def drawn(name: str, width: int, height: int) -> dict[str, str]:
    """Text and styles of every view."""
    found = {}
    for view, layout in layouts(name, width, height):
        rows = rows_of(layout, width, height)
        found[view] = layout.text(width, height) + "\n\n" + "\n".join(map(_styles, rows)) + "\n"
    return found


def svgs(name: str, width: int, height: int, views: list[str] | None = None) -> dict[str, str]:
    """The SVG of every view, or of these; of the largest size its SHA-256."""
    found = {}
    for view, layout in layouts(name, width, height):
        if views is None or view in views:
            svg = svg_of(rows_of(layout, width, height), SNAPSHOTS[name].theme)
            is_kept = (width, height) != SIZES[-1]
            found[view] = svg if is_kept else hashlib.sha256(svg.encode()).hexdigest()
    return found


def path_of_state(name: str, width: int, height: int) -> Path:
    """Where a state is kept at a size."""
    return PACKED / f"{name}-{width}x{height}.zst"


_HEAD = re.compile(r"^=== (text|svg) (\w+)\n", re.M)


def read_pack(path: Path) -> dict[tuple[str, str], str]:
    """What a file holds, by (kind, view)."""
    if not path.exists():
        return {}
    _, *parts = _HEAD.split(zstandard.decompress(path.read_bytes()).decode())
    return {(kind, view): text for kind, view, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def write_packs() -> None:
    """Write all files anew, and print how the texts and styles differ from what was there."""
    PACKED.mkdir(exist_ok=True)
    known = {path_of_state(name, *size) for name in SNAPSHOTS for size in SIZES}
    for path in set(PACKED.glob("*.zst")) - known:
        path.unlink()
    for name in SNAPSHOTS:
        for size in SIZES:
            path = path_of_state(name, *size)
            before = read_pack(path)
            texts = drawn(name, *size)
            made = {("text", view): text for view, text in texts.items()}
            made |= {("svg", view): svg + "\n" for view, svg in svgs(name, *size).items()}
            if made == before:
                continue
            for view, text in texts.items():
                print(difference(before.get(("text", view), ""), text, f"{path.stem} {view}"), end="")
            packed = "".join(f"=== {kind} {view}\n{text}" for (kind, view), text in made.items())
            path.write_bytes(zstandard.ZstdCompressor(level=19).compress(packed.encode()))


def difference(before: str, after: str, where: str) -> str:
    """The lines that differ."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), where, "now", n=0, lineterm="")
    return "".join(f"{line}\n" for line in lines) if before else f"new: {where}\n"
