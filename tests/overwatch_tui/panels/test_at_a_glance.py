"""What the view of a run has room for: cells and rows of many envs, the log by epochs, terms of sums."""

from __future__ import annotations

import re

import pytest

from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.panels import envs, log
from esper_overwatch.overwatch_tui.render.format import sorted_terms
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.theme import UNICODE
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from tests.overwatch_tui.harness import draw, panel_inputs, state


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
def test_all_of_64_envs_are_cells_above_20_rows(size: tuple[int, int]) -> None:
    made = panel_inputs(state(envs=64, rounds=2), ViewState())
    lines = [re.split("[│├┤┼]", line)[0] for line in draw(made, *size).splitlines()]
    heading = next(i for i, line in enumerate(lines) if line.startswith(" ENV "))
    cells = "".join(line[1:].rstrip() for line in lines[4 : heading - 1])
    assert len(cells) == 64
    levels = [UNICODE.spark.index(cell) for cell in cells]
    assert levels == sorted(levels), "the worst first"
    rows = [line for line in lines[heading:] if line[1:4].strip().isdecimal()]
    assert len(rows) >= 20
    assert any("SLOT BLUEPRINT" in line for line in lines), "the selected env is beneath"


def test_flagged_env_is_a_letter_before_all_others() -> None:
    made = panel_inputs(state(envs=16), ViewState())
    lines = [plain(line) for line in envs.body(made, 80, 12).lines]
    assert lines[0].strip().startswith("WWS"), "env13 and env07, then what stalls"
    assert lines[1].rstrip().endswith("S stalled  W warning")


def test_moves_of_seeds_are_one_line_an_epoch() -> None:
    made = panel_inputs(state())
    texts = [plain(line) for line in log.body(made, 100, 200).lines]
    folded = [text for text in texts if " moved" in text]
    assert any("germinated" in text for text in folded)
    places = [text.split("seeds")[0].split(maxsplit=1)[1].strip() for text in folded]
    assert len(set(places)) == len(places), "one an epoch"
    made.view.filters["log"] = parse_filter("-tag:seed", log.FIELDS)
    assert not any("moved" in plain(line) for line in log.body(made, 100, 200).lines)
    alone = sum(entry.tag == "SEED" for entry in made.state.log)
    assert alone > 4 * len(folded)


def test_terms_of_a_sum_come_by_size_without_zeros() -> None:
    terms = {"stage": -0.0, "rent": -0.4, "gain": 0.9, "none": None, "contribution": 0.0001}
    assert sorted_terms(terms) == [("gain", 0.9), ("rent", -0.4)]
