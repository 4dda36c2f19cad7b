"""The pictures that golden files hold: every view, and every state the link and the run can be in."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from overwatch_tui.compose import compose
from overwatch_tui.frame import Frame
from overwatch_tui.history import SECOND
from overwatch_tui.state import State
from overwatch_tui.theme import ASCII
from overwatch_tui.view import VIEWS, View
from protocol import events as ev
from protocol.wire import decode_line

from . import journal
from .harness import draw, events, folded, frame, state

FOLDER = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40))


def _view(name: str, *, detail: bool = False, env: int = 7) -> View:
    view = View(env=env)
    view.show(name)
    view.detail = detail
    return view


def _paused() -> State:
    run = journal.Run(rounds=1)
    run.make()
    run.emit(ev.RunStateChanged(state="PAUSED", reason="by esper-tui"))
    return folded(decode_line(line) for line in run.lines)


def _frozen(width: int, height: int) -> str:
    view = View(frozen=True, arrived=702)
    return compose(frame(state(), view), frame(state(rounds=3), view), width, height).text(width, height)


def _late(width: int, height: int) -> str:
    made = frame(state(), state="stale", age=7.2, said="no answer for 7.2s; still trying")
    made.now += 7 * SECOND
    return draw(made, width, height)


NO_RUN = "no live run found; start one with: esper-daemon start"
FRAMES: dict[str, Callable[[], Frame]] = {
    "empty": lambda: frame(state="searching", age=None, name=None, rate=None, said=NO_RUN),
    "joined-without-events": lambda: frame(folded(events()[:1])),
    "ended": lambda: frame(state(), state="ended", said="run digits-7f3a has ended: stop by esper-tui"),
    "gaps": lambda: frame(state(), gaps=2, skipped=40, bad=3, dropped={"metric": 7}),
    "paused": lambda: frame(_paused()),
    "read-only": lambda: frame(state(), View(read_only=True)),
    "ascii": lambda: frame(state(), View(glyphs=ASCII, env=7)),
    "grid-64": lambda: frame(state(envs=64, rounds=2)),
    "ten-slots": lambda: frame(state(envs=8, rounds=1, slots=10)),
    "by-drift": lambda: frame(state(), View(sort="drift")),
}
for _name in VIEWS:
    FRAMES[_name] = lambda name=_name: frame(state(), _view(name))
    FRAMES[f"{_name}-detail"] = lambda name=_name: frame(state(), _view(name, detail=True))

SCENES: dict[str, Callable[[int, int], str]] = {"stale": _late, "frozen": _frozen}
for _name, _make in FRAMES.items():
    SCENES[_name] = lambda w, h, make=_make: draw(make(), w, h)


def path_of(name: str, width: int, height: int) -> Path:
    return FOLDER / f"{name}-{width}x{height}.txt"


def main() -> None:
    """Write all golden files anew."""
    import os

    os.environ["TZ"] = "UTC"
    time.tzset()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name, scene in SCENES.items():
        for width, height in SIZES:
            path_of(name, width, height).write_text(scene(width, height) + "\n", encoding="utf-8")
    print(f"wrote {len(SCENES) * len(SIZES)} pictures to {FOLDER}")


if __name__ == "__main__":
    main()
