"""The panel of one env."""

from __future__ import annotations

from dataclasses import replace

from overwatch_tui.panels import env
from overwatch_tui.render.view_state import ViewState
from protocol.codec.json_lines import Event
from protocol.messages.events import EpochFinished
from tests.overwatch_tui.harness import events, folded, panel_inputs


def test_fp16_scale_and_skipped_steps_are_shown() -> None:
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, EpochFinished))
    scaled = replace(found[at].data, loss_scale=[65536.0, 65536.0, 0.5, 65536.0], skipped_steps=[0, 0, 7, 0])

    def drawn(*more: Event) -> str:
        lines = env.body(panel_inputs(folded([*found, *more]), ViewState(env=2)), 110, 12).lines
        return "\n".join("".join(text for text, _ in line) for line in lines)

    plain, shown = drawn(), drawn(replace(found[at], data=scaled))
    assert "fp16" not in plain
    assert "fp16 scale 0.50 skipped 7" in shown
