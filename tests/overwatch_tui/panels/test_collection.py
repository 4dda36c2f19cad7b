"""What the screens say of collection itself: its stride, the stalls of a round, how a profile went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.panels import policy, profile, system
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui import journal
from tests.overwatch_tui.harness import folded, panel_inputs


def told(*data: Any) -> Any:
    """A frame of a run that ends with these events."""
    run = journal.Run(rounds=1)
    run.make()
    for one in data:
        run.emit(one)
    return panel_inputs(folded(decode_line(line) for line in run.lines), ViewState(env=1))


def lines(panel: Any, *data: Any, width: int = 80, height: int = 60) -> list[str]:
    return [plain(line) for line in panel.body(told(*data), width, height).lines]


def test_a_stride_is_shown_while_it_is_in_force() -> None:
    slower = ev.TelemetryStride(old=1, new=4, share=0.035, budget=0.01)
    faster = ev.TelemetryStride(old=4, new=1, share=0.001, budget=0.01)
    assert any("drift every 4 epochs" in line for line in lines(system, slower))
    assert not any("drift every" in line for line in lines(system, slower, faster))


def test_stalls_of_a_round_are_shown() -> None:
    shown = next(line for line in lines(system) if "graph breaks" in line)
    assert "device waits --" in shown
    assert "recompiles 0" in shown


@pytest.mark.parametrize("busy", [None, 0.42])
def test_how_well_a_profile_used_the_machine(busy: float | None) -> None:
    kernels = None if busy is None else 1234
    told_profile = ev.ProfilerFinished(
        path="/traces/x.pt.trace.json",
        bytes=10,
        epochs=1,
        top=[],
        gpu_utilisation=busy,
        kernels=kernels,
        allocator_seconds=0.25,
        python_share=0.31,
    )
    words = "gpu -- busy, -- kernels" if busy is None else "gpu 42% busy, 1234 kernels"
    assert any(f"{words}, allocator 0.25 s, python 31%" in line for line in lines(profile, told_profile))


def test_each_head_has_its_ratio() -> None:
    inputs = told()
    inputs.view.show_view("policy")
    shown = [plain(line) for line in policy.body(inputs, 120, 60).lines]
    assert any("max ratio" in line for line in shown)
    assert any(line.startswith(" op ") and " 1.40" in line for line in shown)


def test_each_head_has_its_coefficients() -> None:
    older = told().state.ppo
    assert older is not None
    none = dict.fromkeys(older.head_entropy, 0.0)
    newest = replace(
        older,
        entropy_coefficient=0.05 / 3,
        value_coefficient=0.05,
        advantage_std=0.01,
        head_clip_fraction=none | {"op": 0.12},
    )
    inputs = told(newest)
    inputs.view.show_view("policy")
    shown = [plain(line) for line in policy.body(inputs, 120, 60).lines]
    (head,) = [line for line in shown if line.startswith(" op ")]
    assert "    0.12  " in head
    (update,) = [line for line in shown if "ent coef" in line and line.startswith(" update")]
    assert "ent coef 0.0167  value coef 0.05" in update
    narrow = [plain(line) for line in policy.body(inputs, 80, 60).lines]
    assert max(map(len, narrow)) <= 80


def test_each_group_of_inputs_has_its_statistics() -> None:
    older = told().state.ppo
    assert older is not None
    found = {"mean": 0.5, "std": 1.25, "outliers": 0.02, "clipped": 0.0, "missing": 0.4, "drift": 2.5}
    newest = replace(older, observation_groups={"loss": found, "stage": found | {"drift": None}})
    inputs = told(newest)
    inputs.view.show_view("policy")
    shown = [plain(line) for line in policy.body(inputs, 100, 60).lines]
    (header,) = [line for line in shown if line.startswith(" inputs")]
    assert header.split() == ["inputs", *found]
    (loss,) = [line for line in shown if line.startswith(" loss ")]
    assert loss.split() == ["loss", "0.50", "1.25", "2.0", "0.0", "40.0", "2.50"]
    (stage,) = [line for line in shown if line.startswith(" stage ")]
    assert stage.split()[-1] == "--"
    before = told()
    before.view.show_view("policy")
    shown = [plain(line) for line in policy.body(before, 100, 60).lines]
    assert not any(line.startswith(" inputs") for line in shown), "an older run tells none"
