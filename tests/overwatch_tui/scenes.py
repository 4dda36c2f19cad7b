"""Every view, and every state of the link and the run: drawn for the golden files and other tests."""

from __future__ import annotations

import base64
import difflib
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from esper_overwatch.overwatch_tui.model.curves import ComparedRun
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.chart_view import ChartView
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.run_rows import RunListInputs, run_list_lines
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.source.run_list import RunList
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui.runs import PUBLISHED, FakeMachine, listed

from . import journal
from .harness import VIEWS, draw, events, folded, panel_inputs, state
from .record import recorded_events

FOLDER = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40), (200, 60))
HEAD, FOOT = 3, 2
"""Lines of the header, the strip and the tabs; of the messages and the keys."""
ENVS = (1, 8, 64, 256)
HEALTHS = {"healthy": False, "incident": True}
"""Whether something goes wrong in a run that is drawn whole, by the name of its pictures."""


def _view(name: str, *, detail: bool = False, env: int = 7) -> ViewState:
    view = ViewState(env=env)
    table = PANELS if PANELS.view_with(name) else PANELS.of(is_published=True)
    table.show(view, name)
    view.detail = detail
    return view


@cache
def _paused() -> State:
    run = journal.Run(rounds=1)
    run.make()
    run.emit(ev.RunStateChanged(state="PAUSED", reason="by esper-tui"))
    return folded(decode_line(line) for line in run.lines)


@cache
def _alerted() -> State:
    """A run whose incident a rule has told of, at the second attempt."""
    run = journal.Run(rounds=1)
    run.make()
    alert = partial(ev.Alert, id="a1", rule="slow learner", level="warning", title="accuracy does not rise")
    run.emit(alert(change="raised", text="env02 since 20 epochs", when="incident.severity >= warning"))
    refused = "the server said 503"
    run.emit(alert(change="failing", action="webhook", attempts=1, error=refused))
    run.emit(alert(change="sent", action="webhook", attempts=2))
    return folded(decode_line(line) for line in run.lines)


def measured() -> State:
    """A run whose layers were measured and that has been profiled."""
    run = journal.Run(rounds=1)
    run.make()
    names = ["block0.conv.weight", "block0.norm.weight", "r0c0.conv_light.weight", "head.weight"]
    outputs = ["block0.out", "r0c0.out", "head.out"]
    weights: list[list[float | None]] = [
        [0.5 * (i + 1) + env / 100 for env in range(run.envs)] for i in range(len(names))
    ]
    rates: list[list[float | None]] = [[0.1 * i for _ in range(run.envs)] for i in range(len(outputs))]
    no_weights: list[list[float | None]] = [[None] * run.envs for _ in outputs]
    no_outputs: list[list[float | None]] = [[None] * run.envs for _ in names]
    norms: list[list[float | None]] = weights + no_weights

    def _all(value: float) -> list[float | None]:
        return [value] * run.envs

    def _count(value: int | None) -> list[int | None]:
        return [value] * run.envs

    run.emit(
        ev.LayerStatistics(
            layer=[*names, *outputs],
            grad_norm=norms,
            grad_rms=norms,
            grad_max=norms,
            zero_fraction=[_all(0.25) for _ in names] + no_weights,
            nonfinite=[
                _count(0),
                _count(3),
                *(_count(0) for _ in names[2:]),
                *(_count(None) for _ in outputs),
            ],
            weight_norm=[_all(10.0) for _ in names] + no_weights,
            activation_rms=[*no_outputs, *rates],
            activation_max=[*no_outputs, *rates],
            activation_zero_fraction=[*no_outputs, *rates[:2], _all(1.0)],
        )
    )
    calls = {
        "aten::conv2d": (420, 8_200.0, 0.5),
        "aten::relu_": (840, 820.0, 0.05),
        "aten::mm": (20, 0.5, 0.01),
    }
    run.emit(
        ev.ProfilerFinished(
            path="/var/lib/esper/runs/digits-7f3a/traces/r000001e000024-of-2-epochs.1760000000000000.pt.trace.json",
            bytes=8_100_000,
            epochs=2,
            top=[
                {"name": name, "calls": n, "self_us": us, "share": share, "on": "cpu"}
                for name, (n, us, share) in calls.items()
            ],
            python_share=0.4,
        )
    )
    return folded(decode_line(line) for line in run.lines)


def _measured(panel: str) -> PanelInputs:
    return panel_inputs(measured(), _view(panel))


def disc(width: int, height: int) -> ev.ImagePreview:
    """The preview of an image with a red disc on blue, as a publisher sends it."""
    rows = [
        [196 if math.hypot(2 * x / width - 1, 2 * y / height - 1) < 0.9 else 21 for x in range(width)]
        for y in range(height)
    ]
    packed = base64.b64encode(zlib.compress(bytes(number for row in rows for number in row)))
    return ev.ImagePreview(width=8 * width, height=8 * height, columns=width, pixels=packed.decode())


def published_events() -> list[Event]:
    """A run that somebody's own loop publishes."""
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    run.emit(ev.RunStateChanged(state="TRAINING"))
    for step in range(40):
        values = {"loss": 2.0 / (step + 1), "accuracy": math.nan if step == 39 else step / 40}
        groups = {f"env/{env}/return": float(env * step) for env in range(3)}
        run.emit(ev.Scalars(step=step, values=values | groups), after=SECOND)
    run.emit(
        ev.Histogram(
            step=39,
            name="weights",
            counts=[3, 1],
            size=4,
            sampled=4,
            nonfinite=0,
            min=-1.0,
            max=1.0,
            mean=-0.5,
            std=0.5,
        )
    )
    run.emit(ev.Summary(step=39, metrics={}, numbers={"best": 0.975}, texts={"verdict": "good"}))
    run.emit(run.system())
    shot = ev.Artifact(step=39, name="shot", path="/runs/shot.png", kind="image", bytes=2048)
    shot.preview = disc(48, 48)
    run.emit(shot)
    rows = [[f"class {i}", i * i, None if i % 2 else i / 7, "a long remark " * 4] for i in range(30)]
    names = ["class", "right", "share", "remark"]
    run.emit(ev.LoggedTable(step=39, name="confusion", columns=names, rows=rows, size=3000))
    run.emit(ev.LoggedText(step=39, name="note", text="two\nlines"))
    return [decode_line(line) for line in run.lines]


def published_state() -> State:
    """What is known of that run."""
    return folded(published_events())


def _published_row(name: str, *, has_colour: bool = False) -> PanelInputs:
    """The detail of something that the run has logged."""
    view = _view("run", detail=True)
    view.select("metrics", ("", name))
    view.has_colour = has_colour
    return panel_inputs(published_state(), view)


def _frozen(width: int, height: int) -> str:
    view = ViewState(is_frozen=True, num_arrived=702)
    live, body = panel_inputs(state(), view), panel_inputs(state(rounds=3), view)
    return compose_screen(PANELS, live, body, width, height).text(width, height)


def _charts(*names: str, **chosen: Any) -> PanelInputs:
    """Charts alone; the cursor 20 s ago."""
    view = _view("run")
    view.charts = ChartView(names=names, **chosen)
    made = panel_inputs(state(), view)
    view.charts.at = made.now - 20 * SECOND
    return made


def _pinned() -> PanelInputs:
    view = _view("pins")
    view.charts.pins = ["ppo.approx_kl", "ppo.entropy", "return.p50", "accuracy/7", "drift/env07", "cpu"]
    return panel_inputs(state(), view)


def _late(width: int, height: int) -> str:
    made = panel_inputs(state(), state="stale", age_seconds=7.2)
    made.now += 7 * SECOND
    return draw(made, width, height)


def _compared() -> PanelInputs:
    """Another run over this one, of which the journal has less; the option that it differs in."""
    made = _charts("return.mean", "accuracy.mean")
    own, other = (
        ComparedRun(mark, name, journal.START) for mark, name in (("a", "digits-7f3a"), ("b", "box:beta"))
    )
    for event in events(rounds=4):
        other.fold(event)
    other.config = {**other.config, "ppo": {"clip": 0.3}}
    made.view.charts.compare(own, [other])
    made.view.charts.at = None
    return made


def _draw_runs(machines: Callable[[], list[FakeMachine]], marked: list[Any], width: int, height: int) -> str:
    runs, view = RunList(machines()), ViewState(marked=marked)
    runs.poll()
    now = max(run.overview.ts for _, run in runs.entries if run.overview)
    lines = run_list_lines(RunListInputs(runs, view, now), width, height)
    return "\n".join(plain(line).rstrip() for line in lines)


def _two_machines(**second: Any) -> list[FakeMachine]:
    here = [
        listed("first-light", accuracy=0.714, rate=12.34),
        listed("beta", "DIED", critical=2, warning=1, rate=0.0),
    ]
    there = [
        listed(
            "cartpole",
            kind="published",
            tags=["ppo", "baseline"],
            signal="loss",
            step=1500,
            values=(2.0, 1.0, 0.5),
            rate=-1234.5,
        ),
        listed("gamma", "FAILED", error="ValueError: boom", exit_code=11),
    ]
    return [FakeMachine(here), FakeMachine(there, host="me@gpu-box", **second)]


@cache
def real_state() -> State:
    """What is known at the end of the real run that is recorded beside this file."""
    return folded(recorded_events())


KINDS: dict[str, Callable[[], State]] = {
    "sixteen envs": state,
    "one env": partial(state, envs=1, rounds=2),
    "first round": partial(state, envs=4, rounds=1),
    "64 envs": partial(state, envs=64, rounds=2),
    "256 envs": partial(state, envs=256, rounds=1),
    "profiled": measured,
    "recorded": real_state,
    "published": published_state,
}
"""What runs there are."""
NO_RUN = "no live run found; start one with: esper-daemon start"
FRAMES: dict[str, Callable[[], PanelInputs]] = {
    "empty": lambda: panel_inputs(
        state="searching", age_seconds=None, name=None, events_per_second=None, problem=NO_RUN
    ),
    "joined-without-events": lambda: panel_inputs(folded(events()[:1])),
    "ended": lambda: panel_inputs(
        state(),
        state="ended",
        outcome="STOPPED",
        stopped_by="uid 1000",
        advice="esper-daemon start --detach --resume digits-7f3a",
    ),
    "died": lambda: panel_inputs(
        state(), state="ended", outcome="DIED", advice="esper-daemon start --detach --resume digits-7f3a"
    ),
    "lost": lambda: panel_inputs(state(), state="lost", age_seconds=47.0),
    "recording": lambda: panel_inputs(state(), state="replay", is_replay=True, replay_speed=5.0),
    "gaps": lambda: panel_inputs(state(), gaps=2, skipped=40, bad=3, dropped={"metric": 7}),
    "paused": lambda: panel_inputs(_paused()),
    "read-only": lambda: panel_inputs(state(), ViewState(read_only=True)),
    "ascii": lambda: panel_inputs(state(), ViewState(glyphs=ASCII, env=7)),
    "grid-64": lambda: panel_inputs(state(envs=64, rounds=2)),
    "one-env": lambda: panel_inputs(state(envs=1, rounds=2)),
    "envs-256": lambda: panel_inputs(state(envs=256, rounds=1)),
    "ten-slots": lambda: panel_inputs(state(envs=8, rounds=1, slots=10)),
    "published": lambda: panel_inputs(published_state()),
    "published-charts": lambda: panel_inputs(published_state(), _view("charts")),
    "published-commands": lambda: panel_inputs(published_state(), _view("commands")),
    "published-about": lambda: panel_inputs(published_state(), _view("about")),
    "published-chart": lambda: panel_inputs(published_state(), _view("metrics", detail=True)),
    "published-table": lambda: _published_row("confusion"),
    "published-image": lambda: _published_row("shot", has_colour=True),
    "published-image-without-colour": lambda: _published_row("shot"),
    "overlay-envs": lambda: _charts("accuracy/7", "drift/env07", overlay="all"),
    "compared": _compared,
    "log-axis": lambda: _charts("norm/env07", is_log=True),
    "pinned": _pinned,
    "layers": lambda: _measured("layers"),
    "profile": lambda: _measured("profile"),
    "alert-sent": lambda: panel_inputs(_alerted(), _view("log")),
    "by-drift": lambda: panel_inputs(state(), ViewState(sort="drift")),
}


def _draw_frame(name: str, width: int, height: int) -> str:
    return draw(FRAMES[name](), width, height)


def _draw_view(name: str, width: int, height: int, *, detail: bool) -> str:
    made = panel_inputs(state(), _view(name, detail=detail))
    panel = PANELS[PANELS.focused(made.view)]
    if detail and panel.detail is None:
        made.view.charts.names = tuple(panel.charts(made))
    return draw(made, width, height)


def real_inputs(name: str) -> PanelInputs:
    """The real run in a view, opened as a recording at its end."""
    return panel_inputs(
        real_state(),
        _view(name, env=6),
        state="ended",
        name="digits-8",
        is_replay=True,
        replay_speed=math.inf,
        events_per_second=None,
        outcome="COMPLETED",
        advice="esper-daemon start --detach --resume digits-8",
    )


def _draw_real(name: str, width: int, height: int) -> str:
    return draw(real_inputs(name), width, height)


def _draw_run(envs: int, has_incidents: bool, name: str, width: int, height: int) -> str:
    """A run of two rounds that is healthy, or of which something is not."""
    return draw(panel_inputs(state(envs, 2, 3, has_incidents), _view(name, env=0)), width, height)


def _first_epoch(width: int, height: int) -> str:
    """What is shown first of a run that has just begun, to one who has never seen the terminal."""
    begun = folded(event for event in events(8, 2, 3, False) if (event.ctx.round, event.ctx.epoch) <= (1, 1))
    return draw(panel_inputs(begun, ViewState(is_new=True)), width, height)


_MARKED = [("", "id-first-light"), ("me@gpu-box", "id-cartpole")]
_DEAD = partial(_two_machines, silence=7, problem="me@gpu-box cannot be reached: Connection refused")
SCENES: dict[str, Callable[[int, int], str]] = {
    "stale": _late,
    "frozen": _frozen,
    "runs-marked": partial(_draw_runs, _two_machines, _MARKED),
    "runs-dead-machine": partial(_draw_runs, _DEAD, []),
}
for _name in FRAMES:
    SCENES[_name] = partial(_draw_frame, _name)
SHOWN = (*VIEWS, "decisions", "drift", "log", "commands")
"""Views, and panels that have all of a narrow screen while they are in focus."""
for _name in SHOWN:
    SCENES[_name] = partial(_draw_view, _name, detail=False)
    SCENES[f"{_name}-detail"] = partial(_draw_view, _name, detail=True)
    SCENES[f"real-{_name}"] = partial(_draw_real, _name)


for _health, _envs in itertools.product(HEALTHS, ENVS):
    SCENES[f"{_health}-{_envs}"] = partial(_draw_run, _envs, HEALTHS[_health], "run")
for _name in VIEWS[1:]:
    SCENES[f"incident-64-{_name}"] = partial(_draw_run, 64, True, _name)
SCENES["first-epoch"] = _first_epoch
LARGER = (
    *(("real-run", *size) for size in SIZES[1:]),
    ("published", *SIZES[1]),
    *((f"{health}-{envs}", *size) for health, envs, size in itertools.product(HEALTHS, ENVS, SIZES)),
    *((f"incident-64-{name}", *size) for name, size in itertools.product(VIEWS[1:], SIZES[1:])),
    *(("first-epoch", *size) for size in SIZES),
)
"""Golden files of whole screens."""
WHOLE = {name for name, *_ in LARGER} - {"published"}


def goldens() -> dict[str, str]:
    """Name of each golden file -> its text.

    A scene's file holds what stands between its head and its foot, so that a word of the header or of the
    keys changes `edges.txt` alone; a scene that differs from an earlier one in its edges only has no file.
    """
    found, edges, first = {}, [], {}
    for name, scene in SCENES.items():
        if name.startswith("real-") or name in WHOLE:
            continue
        lines = scene(*SIZES[0]).split("\n")
        body = "\n".join(lines[HEAD:-FOOT]) + "\n"
        earlier = first.setdefault(body, name)
        note = "" if earlier == name else f", the rest as in {earlier}"
        edges += [f"=== {name}{note}", *lines[:HEAD], *lines[-FOOT:]]
        if earlier == name:
            found[f"{name}.txt"] = body
    for name, width, height in LARGER:
        found[f"{name}-{width}x{height}.txt"] = SCENES[name](width, height) + "\n"
    return {"edges.txt": "\n".join(edges) + "\n"} | found


def difference(name: str, before: str, after: str) -> str:
    """The lines of a golden file that differ."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, "now", n=0, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def kept() -> dict[str, str]:
    """Name of each golden file that lies in the folder -> its text."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}


def main() -> None:
    """Write the golden files again and print what changed."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    FOLDER.mkdir(exist_ok=True)
    before, found = kept(), goldens()
    for name in before.keys() - found.keys():
        (FOLDER / name).unlink()
        print(f"removed {name}")
    for name, text in found.items():
        if text != before.get(name):
            (FOLDER / name).write_text(text, encoding="utf-8")
            print(difference(name, before[name], text) if name in before else f"new: {name}\n", end="")


if __name__ == "__main__":
    main()
