"""What is shown, written to files and read again."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.export import as_csv, as_json
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from tests.overwatch_tui.harness import events, in_loop, panel_inputs, session, state
from tests.overwatch_tui.scenes import measured, published_events
from tests.overwatch_tui.test_app import LARGE, SMALL, app_of, do, press, within


async def _export(folder: Path, form: str, *keys: str, **options: object) -> tuple[str, str]:
    """(what the screen says, what is in the file)."""
    with within(folder):
        app = app_of(session(events(**options)))  # type: ignore[arg-type]
        async with app.run_test(size=SMALL) as pilot:
            await press(pilot, *keys)
            await do(pilot, f"export {form}")
            said = app.session.view.message
    (path,) = folder.glob("esper-*")
    return said, path.read_text(encoding="utf-8")


@in_loop
async def test_csv_has_all_rows_and_its_path_is_whole(tmp_path: Path) -> None:
    said, text = await _export(tmp_path, "csv", envs=64, rounds=1)
    rows = list(csv.DictReader(text.splitlines()))
    assert sorted(int(row["env"]) for row in rows) == list(range(64))
    assert {"st", "acc", "dacc", "return", "grad", "drift", "action", "r0c0", "r0c2"} <= set(rows[0])
    (path,) = tmp_path.glob("*.csv")
    assert str(path) in said


@in_loop
async def test_filter_is_respected(tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of()
        async with app.run_test(size=LARGE) as pilot:
            chosen = parse_filter("acc<45", PANELS["envs"].fields(app.body))
            assert chosen is not None
            app.session.view.filters["envs"] = chosen
            await do(pilot, "export json")
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())
    assert 0 < len(rows) < 16
    assert all(row["acc"] < 45 for row in rows)


@in_loop
async def test_chart_is_written_as_its_measured_points(tmp_path: Path) -> None:
    _, text = await _export(tmp_path, "csv", "4", "tab", "enter")
    rows = list(csv.DictReader(text.splitlines()))
    assert any("drift" in row["curve"] for row in rows)
    assert all(float(row["low"]) <= float(row["mean"]) + 1e-6 <= float(row["high"]) + 2e-6 for row in rows)
    assert all(row["time"].endswith("+00:00") for row in rows)


@in_loop
async def test_s_saves_where_charts_are_all_there_is(tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of(session(published_events()))
        async with app.run_test(size=SMALL) as pilot:
            await press(pilot, "3", "s")
            assert app.session.view.message.endswith(".svg and .csv")
    (written,) = tmp_path.glob("*.csv")
    assert {row["curve"] for row in csv.DictReader(written.read_text().splitlines())} >= {"loss", "accuracy"}


@in_loop
async def test_text_and_svg_show_all_rows(tmp_path: Path) -> None:
    for form, folder in (("txt", tmp_path / "t"), ("svg", tmp_path / "s")):
        folder.mkdir()
        _, text = await _export(folder, form, envs=64, rounds=1)
        assert all(f"{env:02d}" in text for env in range(64))
        assert ("<svg" in text) == (form == "svg")
        assert "@font-face" not in text


@pytest.mark.slow
@pytest.mark.parametrize("is_published", [False, True])
@in_loop
async def test_every_view_is_written_or_says_why_not(is_published: bool, tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of(session(published_events())) if is_published else app_of()
        async with app.run_test(size=SMALL) as pilot:
            for view in PANELS.of(is_published=is_published).views:
                for form in ("csv", "txt"):
                    app.session.view.show_view(view.name)
                    await do(pilot, f"export {form}")
                    said = app.session.view.message
                    assert said.startswith("wrote /") or "take text or SVG" in said, (view.name, form)


@in_loop
async def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with within(tmp_path):
        app = app_of()
        async with app.run_test(size=SMALL) as pilot:
            tmp_path.rmdir()
            await do(pilot, "export txt")
            assert "not written" in app.session.view.message


def test_values_that_files_cannot_hold() -> None:
    records = [{"a": float("nan"), "b": None, "c": "x\x1b[2J,\n"}, {"a": float("inf"), "d": 1}]
    assert json.loads(as_json(records))[0]["a"] == "nan"
    rows = list(csv.DictReader(as_csv(records).splitlines()))
    assert rows[0]["b"] == ""
    assert rows[1]["d"] == "1"
    assert "\x1b" not in as_csv(records)


def test_points_are_those_that_were_measured() -> None:
    inputs = panel_inputs(state())
    history = inputs.history("accuracy/0")
    assert history is not None
    points = history.points(0)
    assert points == sorted(points)
    assert points[0][0] <= history.first_ts < points[0][0] + 60_000_000
    assert points[-1][0] <= history.last_ts
    assert history.points(history.last_ts + 1_000_000) == []


def test_ended_seeds_layers_and_operators_are_records() -> None:
    known = measured()
    seeds = PANELS["seeds"].records(panel_inputs(known))
    assert {row["st"] for row in seeds} & {"PRUNED", "FOSSILIZED"}
    assert any(row["ended"] is None for row in seeds)
    assert len(seeds) == len(PANELS["seeds"].keys(panel_inputs(known)))
    view = ViewState()
    view.show_view("seeds")
    view.detail = True
    life = PANELS["seeds"].records(panel_inputs(known, view))
    assert set(life[0]) == {"epoch", "ts", "alpha", "contribution", "grad_norm"}
    layers = PANELS["layers"].records(panel_inputs(known))
    assert {row["env"] for row in layers} == set(range(16))
    assert {"name", "norm", "zero", "update"} <= set(layers[0])
    drift = PANELS["drift"].records(panel_inputs(known))
    assert {"source", "norm", "norm_drift", "sev"} <= set(drift[0])
    operators = PANELS["profile"].records(panel_inputs(known))
    assert [row["name"] for row in operators] == ["aten::conv2d", "aten::relu_", "aten::mm"]
    assert operators[0]["us_per_call"] == 8_200.0 / 420


@in_loop
async def test_a_page_hands_its_files_to_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def deliver(_app: object, file: io.StringIO, *, save_filename: str) -> None:
        given[save_filename] = file.read()

    monkeypatch.setattr(OverwatchApp, "is_web", property(lambda _: True))
    monkeypatch.setattr(OverwatchApp, "deliver_text", deliver)
    with within(tmp_path):
        app = app_of()
        async with app.run_test(size=SMALL) as pilot:
            await do(pilot, "export csv")
            assert "which the browser has downloaded" in app.session.view.message
            await do(pilot, "screenshot")
            assert "the browser has downloaded" in app.session.view.message
    assert sorted(name.rpartition(".")[2] for name in given) == ["csv", "svg", "txt"]
    assert all(given.values())
    assert list(tmp_path.iterdir()) == []
