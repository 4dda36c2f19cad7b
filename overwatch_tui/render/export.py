"""Exports: rows and curves as CSV or JSON, a drawing as text or SVG that needs nothing from the network."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from rich.console import Console
from rich.text import Text

from esper_overwatch.overwatch_tui.model.courses import Course
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.step_series import STEP
from esper_overwatch.overwatch_tui.model.time_series import Bucket, History
from esper_overwatch.protocol.codec.text import clean_text

from .lines import Line, plain
from .panel import PanelInputs
from .plot import Series
from .theme import Theme

Record = Mapping[str, FieldValue]
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
GREY, NIGHT, WHITE = "#292929", "#0e1218", "#ffffff"
"""Rich's background, and those of dark and light themes."""
PALE, INK = "#c5c8c6", "#1a1a1a"
"""Rich's plain text, and that of light themes."""

_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_FAMILY = re.compile(r"font-family:\s*Fira Code[^;]*;")
MAX_COMPUTED = 300
"""Buckets of a curve that is computed of others."""


@dataclass
class ChartRecorder(PanelInputs):
    """Inputs that note which curves a panel draws."""

    drawn: list[Series] = field(default_factory=list)

    def chart(self, series: Sequence[Series], *size: Any, **options: Any) -> list[Line]:
        self.drawn += series
        return super().chart(series, *size, **options)


def curve_records(inputs: ChartRecorder) -> list[Record]:
    """A record for each drawn curve and bucket of the window: what was measured, or computed of that."""
    found: list[Record] = []
    for series in inputs.drawn:
        for at, bucket in _points(series.history, inputs):
            place: Record = {"time": datetime.fromtimestamp(at / 1e6, UTC).isoformat()}
            if inputs.axis.is_by_step:
                place = {inputs.axis.unit: at / STEP / inputs.axis.per_unit}
            low, mean, high = (series.scale * value for value in bucket)
            found.append({"curve": series.label, **place, "low": low, "mean": mean, "high": high})
    return found


def _points(course: Course | None, inputs: PanelInputs) -> list[tuple[int, Bucket]]:
    axis = inputs.axis
    if course is None:
        return []
    if isinstance(course, History):
        return course.points(axis.now - axis.window)
    dt = max(1, axis.window // MAX_COMPUTED)
    first = axis.now // dt - MAX_COMPUTED + 1
    buckets = course.buckets(axis.now, axis.window, MAX_COMPUTED)
    return [((first + i) * dt, one) for i, one in enumerate(buckets) if one is not None]


def as_csv(records: Sequence[Record]) -> str:
    """One line per record under a line of names; empty = not measured."""
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _cleaned(value) for name, value in record.items()})
    return out.getvalue()


def as_json(records: Sequence[Record]) -> str:
    """A list of objects; what is not finite is a text, what was not measured null."""
    found = [{name: _finite(_cleaned(value)) for name, value in record.items()} for record in records]
    return json.dumps(found, indent=1) + "\n"


def _cleaned(value: FieldValue) -> FieldValue:
    return clean_text(value) if isinstance(value, str) else value


def _finite(value: FieldValue) -> FieldValue:
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def as_text(lines: Sequence[Line]) -> str:
    return "\n".join(plain(line).rstrip() for line in lines) + "\n"


def as_svg(lines: Sequence[Line], theme: Theme, title: str) -> str:
    """The drawing in the colours of a theme, as Rich draws it."""
    width = max((len(plain(line)) for line in lines), default=1)
    console = Console(
        width=width,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in lines:
        text = Text(no_wrap=True, overflow="crop")
        for part, style in line:
            text.append(part, theme.style(style))
        console.print(text)
    return console.export_svg(title=title)


def self_contained(svg: str, *, is_light: bool = False) -> str:
    """Use fonts that the reader has, and the background that the theme is made for."""
    svg = _FAMILY.sub(f"font-family: {FONTS};", _FONT_FACE.sub("", svg))
    if is_light:
        return svg.replace(GREY, WHITE).replace(PALE, INK)
    return svg.replace(GREY, NIGHT)
