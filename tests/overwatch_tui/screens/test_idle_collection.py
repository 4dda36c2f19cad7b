"""Full collections of garbage wait for a pause."""

from __future__ import annotations

import subprocess
import sys

from esper_overwatch.overwatch_tui.screens.idle_collection import (
    PERIOD_SECONDS,
    QUIET_SECONDS,
    IdleCollection,
)


def test_full_collection_waits_for_pause_without_keys() -> None:
    now, collected = [0.0], list[float]()
    idle = IdleCollection(lambda: collected.append(now[0]), lambda: now[0])
    idle.note_pause()
    assert not collected, "there is nothing to collect yet"
    now[0] = PERIOD_SECONDS
    idle.note_key()
    now[0] += QUIET_SECONDS / 2
    idle.note_pause()
    assert not collected, "a key was pressed a moment ago"
    now[0] += QUIET_SECONDS
    idle.note_pause()
    idle.note_pause()
    assert collected == [now[0]]
    now[0] += PERIOD_SECONDS
    idle.note_pause()
    assert len(collected) == 2


def test_python_begins_no_full_collection_by_itself() -> None:
    program = """
import gc
from esper_overwatch.overwatch_tui.screens.idle_collection import IdleCollection
gc.disable()
IdleCollection().take_over()
before = gc.get_stats()
for _ in range(200_000):
    cycle = []
    cycle.append(cycle)
full, young = (gc.get_stats()[i]["collections"] - before[i]["collections"] for i in (2, 0))
print(full, young > 0, gc.get_freeze_count() > 1000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True True\n"
