"""A run's past for notebooks and scripts: `open_run("my-run").scalars()`; see docs/how-to/query.md."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.extras import require
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.runs import RunInfo, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath
from esper_overwatch.trainer.query.database import Database, Result
from esper_overwatch.trainer.query.timeline import valid_events

from .scalars import read_episode_epochs, scalars

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes

MAX_SHOWN_CURVES = 24
SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 160, 24
"""Pixels of a curve in a notebook."""


class UnknownScalar(EsperError):
    """The run has logged no such number."""

    exit_code = 3


@dataclass(frozen=True)
class ScalarCurve:
    """The values of one scalar, in the order written; numpy takes the columns without a copy."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    """Steps of a published run; epochs over all rounds, or rounds, of a training."""
    times: array[float] = field(default_factory=lambda: array("d"))
    """Wall time, seconds since 1970."""
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.values)


class OpenedRun:
    """The journal of a run, live or ended; each question reads what there is by then.

    Attributes:
        name, path: of the run.
        damage: what of the journal could not be read.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self.name, self.path = run.name, run.path
        self.damage = DamageReport()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The newest configuration; empty where the journal has none any more."""
        found = [event.data.config for event in self.events("run.started", "run.config")]
        return found[-1] if found else {}

    def events(self, *types: str) -> Iterator[Event]:
        """Its events of these types, or all; epochs that a resumed boot played again come once.

        Raises:
            FolderError: the journal cannot be read.
        """
        self.damage = DamageReport()
        for event in valid_events(self.path / EVENTS_FILE, self.damage):
            if not types or event.type in types:
                yield event

    def scalars(self, *names: str) -> dict[str, ScalarCurve]:
        """The curves of these scalars, or all, by name.

        Raises:
            UnknownScalar: the run has none of a name.
            FolderError: the journal cannot be read.
        """
        curves: dict[str, ScalarCurve] = {name: ScalarCurve() for name in names}
        episode = read_episode_epochs(self._run)
        for event in self.events():
            for name, value, step in scalars(event, episode):
                if names and name not in curves:
                    continue
                curve = curves.setdefault(name, ScalarCurve())
                curve.steps.append(step)
                curve.times.append(event.ts / 1e6)
                curve.values.append(value)
        if absent := [name for name, curve in curves.items() if not curve]:
            raise UnknownScalar(f"{self.name} has no scalar {absent[0]!r}; scalars() without names has all")
        return curves

    def table(self, *names: str) -> pyarrow.Table:
        """`scalars` as a tidy Arrow table: name, step, time, value; `.to_pandas()`, or `polars.from_arrow`.

        Raises:
            MissingExtra: pyarrow is not installed.
            UnknownScalar, FolderError: as `scalars`.
        """
        require("pyarrow")
        import pyarrow

        curves = self.scalars(*names)
        columns = {
            "name": [name for name, curve in curves.items() for _ in curve.values],
            "step": [step for curve in curves.values() for step in curve.steps],
            "time": [round(1e6 * at) for curve in curves.values() for at in curve.times],
            "value": [value for curve in curves.values() for value in curve.values],
        }
        time = pyarrow.array(columns["time"], pyarrow.timestamp("us", "UTC"))
        return pyarrow.table(columns | {"time": time})

    def query(self, sql: str) -> Result:
        """Ask it in SQL, as `esper-daemon query` does.

        Raises:
            MissingExtra: DuckDB is not installed.
            QueryError: the SQL is wrong.
        """
        return Database(self.path / EVENTS_FILE).ask(sql)

    def plot(self, *names: str) -> Axes:
        """Draw `scalars` over their steps by matplotlib.

        Raises:
            MissingExtra: matplotlib is not installed.
            UnknownScalar, FolderError: as `scalars`.
        """
        require("matplotlib")
        from matplotlib import pyplot

        _, axes = pyplot.subplots(layout="constrained")
        for name, curve in self.scalars(*names).items():
            axes.plot(curve.steps, curve.values, label=name)
        axes.set(title=self.name, xlabel="step")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        return f"<run {self.name}, {self._run.state}, {self.path}>"

    def _repr_html_(self) -> str:
        """A notebook's picture: each curve with its newest value."""
        curves = self.scalars()
        rows = [
            f"<tr><td>{escape(name)}</td><td>{_sparkline(curve)}</td><td>{curve.values[-1]:.4g}</td></tr>"
            for name, curve in list(curves.items())[:MAX_SHOWN_CURVES]
        ]
        more = len(curves) - len(rows)
        rest = f"<p>and {more} more: scalars()</p>" if more else ""
        return (
            f"<b>{escape(self.name)}</b> {escape(str(self._run.state))}<table>{''.join(rows)}</table>{rest}"
        )


def _sparkline(curve: ScalarCurve) -> str:
    """An SVG of a curve; what is not finite is a gap at the edge of it."""
    finite = [value for value in curve.values if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    points = []
    for place, value in enumerate(curve.values):
        if abs(value) < float("inf"):
            x = SPARKLINE_WIDTH * place / max(1, len(curve) - 1)
            share = (value - low) / (high - low) if high > low else 0.5
            points.append(f"{x:.1f},{(1 - share) * SPARKLINE_HEIGHT:.1f}")
    return (
        f'<svg width="{SPARKLINE_WIDTH}" height="{SPARKLINE_HEIGHT}">'
        f'<polyline fill="none" stroke="currentColor" points="{" ".join(points)}"/></svg>'
    )


def open_run(name: str | None = None, *, home: StrPath | None = None) -> OpenedRun:
    """Open the past of a run, live or ended, of this machine.

    Args:
        name: or the beginning of a name or id that only one has; None = the newest live run, else the newest.
        home: instead of `$ESPER_HOME`.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    return OpenedRun(find_run(name, home=home))
