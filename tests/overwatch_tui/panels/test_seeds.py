"""The view of seeds: who lives, who has ended, how blueprints do, and the life of one."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.panels import seeds
from esper_overwatch.overwatch_tui.panels.seeds import score_lines
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from tests.overwatch_tui.harness import events, folded, in_loop, panel_inputs, session, state
from tests.overwatch_tui.test_app import press, shown


def inputs_of(view: ViewState | None = None) -> PanelInputs:
    return panel_inputs(state(), view or ViewState(name="seeds", focus="seeds"))


def text_of(inputs: PanelInputs, width: int = 120, height: int = 35, *, detail: bool = False) -> str:
    drawn = (seeds.detail if detail else seeds.body)(inputs, width, height)
    return "\n".join(map(plain, drawn.lines))


def test_scores_by_slot_sum_to_those_of_the_blueprint() -> None:
    board = state().seed_counts
    for name, total in board.by_blueprint().items():
        of_slots = [tally for (blueprint, _), tally in board.by_slot().items() if blueprint == name]
        assert total.germinated == sum(tally.germinated for tally in of_slots)
        assert total.measured == sum(tally.measured for tally in of_slots) > 0
    lines = "\n".join(map(plain, score_lines(inputs_of(), 120)))
    tally = board.by_slot()["norm", "r0c2"]
    assert "r0c2 g/f/p worth" in lines
    assert tally.mean_contribution is not None
    assert (
        f"{tally.germinated}/{tally.fossilized}/{tally.pruned} {100 * tally.mean_contribution:+6.1f}" in lines
    )


def test_ended_seeds_are_listed_and_can_be_selected() -> None:
    view = ViewState(name="seeds", focus="seeds")
    inputs = inputs_of(view)
    assert "ENDED" in text_of(inputs)
    pruned = next(story for story in seeds.ended(inputs) if story.outcome == "PRUNED")
    view.select("seeds", pruned.seed)
    row = next(line for line in text_of(inputs).splitlines() if line.startswith(inputs.glyphs.cursor))
    assert f"{pruned.env:02d}  {pruned.slot} {pruned.blueprint}" in row
    assert f"PRUNED               r{pruned.round}e{pruned.end_epoch}".split()[0] in row


def test_life_names_birth_stages_failed_checks_and_cost() -> None:
    view = ViewState(name="seeds", focus="seeds", detail=True)
    inputs = inputs_of(view)
    story = next(x for x in seeds.ended(inputs) if x.outcome == "PRUNED" and any(g.failed for g in x.gates))
    view.select("seeds", story.seed)
    for size in ((80, 19), (120, 35)):
        text = text_of(inputs, *size, detail=True)
        assert f"env{story.env:02d} {story.slot}" in text
        assert f"PRUNED in epoch {story.end_epoch}" in text
        assert f"born    in epoch {story.born_epoch} by policy" in text
        assert "cost    " in text
        assert "% of the host's" in text
        assert "waits: epochs" in text
        assert "alpha" in text


@in_loop
async def test_enter_opens_the_life_of_the_selected_seed() -> None:
    app = OverwatchApp(session(events(rounds=2)))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "4", "j", "enter")
        text = shown(app)
        assert "born    in epoch" in text
        assert "STAGE      FROM EPOCHS" in text
        await press(pilot, "escape")
        assert "GERM FOSS PRUNED CONTRIB" in shown(app)
        await press(pilot, "G", "enter")
        assert "cost    " in shown(app)


def test_a_run_without_seeds_says_so() -> None:
    inputs = panel_inputs(folded(events(envs=2, rounds=1)[:3]), ViewState(name="seeds", focus="seeds"))
    assert "no seed lives in any slot now" in text_of(inputs)
    assert "no seed lives in any slot now" in text_of(inputs, detail=True)
