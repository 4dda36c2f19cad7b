"""A real daemon, a real TUI on a real pseudo-terminal: what is pressed happens, and is shown."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import TERMINAL, House, eventually
from .terminal import Terminal


@contextmanager
def overwatch(house: House, *arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    command = [sys.executable, *TERMINAL, *arguments]
    terminal = Terminal(command, house.environment, columns=columns, lines=lines)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.slow
def test_escalate_and_profile_from_the_keyboard(house: House) -> None:
    house.spawn("keys", "--set", "telemetry.escalate_on=off")
    with overwatch(house) as tui:
        tui.wait_for("LIVE")
        tui.wait_for(lambda text: "keys" in text and " 03 " in text)
        tui.press("T")
        tui.wait_for("y/N")
        tui.press("y")
        done = eventually(lambda: (tui.read(0.05), house.journal("keys", "command.done"))[1])[0]
        accepted = house.journal("keys", "command.accepted")[0]
        assert accepted["data"]["method"] == "telemetry.escalate"
        assert accepted["data"]["id"] == done["data"]["id"]
        assert accepted["data"]["client"].startswith("esper-tui")
        epochs = accepted["data"]["params"]["epochs"]
        layers = house.journal("keys", "layers")
        assert len(layers) == epochs
        assert all(len(column) == 4 for column in layers[0]["data"]["grad_norm"])
        changes = [
            (e["data"]["level"], e["data"]["epochs"]) for e in house.journal("keys", "telemetry.level")
        ]
        assert changes == [("DEBUG", epochs), ("NORMAL", None)]
        tui.wait_for("DONE")

        tui.press("P")
        tui.wait_for("y/N")
        tui.press("y")
        finished = eventually(lambda: (tui.read(0.05), house.journal("keys", "profiler.finished"))[1])[0]
        assert finished["data"]["error"] is None
        assert finished["data"]["top"]
        trace = json.loads(Path(finished["data"]["path"]).read_bytes())
        assert any(event.get("cat") == "cpu_op" for event in trace["traceEvents"])
        tui.press("q")
        assert tui.process.wait(300) == 0
    assert house.ask("status", "keys")["state"] == "TRAINING"


@pytest.mark.slow
def test_who_takes_the_lease_commands_and_releases_it(house: House) -> None:
    house.spawn("leased")
    with overwatch(house, "leased") as tui:
        tui.wait_for("LIVE")
        tui.press(":lease.acquire ttl=600\r")
        tui.wait_for("LEASE 9m")
        refused = house.daemon("pause", "leased")
        assert (refused.returncode, "alone may command" in refused.stderr) == (4, True)
        tui.press("T")
        tui.wait_for("y/N")
        tui.press("y")
        done = eventually(lambda: (tui.read(0.05), house.journal("leased", "command.done"))[1][1:])
        assert done[0]["data"]["method"] == "telemetry.escalate"
        tui.press("q")
        said = tui.wait_for("export ESPER_LEASE=")
        assert tui.process.wait(300) == 0
    token = re.search(r"ESPER_LEASE=([0-9a-f]{16})", said)
    assert token is not None
    assert token[1] not in (house.run_folder("leased") / "events.jsonl").read_text()
    with overwatch(house, "leased") as watcher:
        watcher.wait_for("LEASE esper-tui/")
    house.environment["ESPER_LEASE"] = token[1]
    with overwatch(house, "leased") as tui:
        tui.wait_for("LEASE 9m")
        tui.press(":lease.release\r")
        tui.wait_for(lambda text: "LEASE 9m" not in text and "LIVE" in text)
    del house.environment["ESPER_LEASE"]
    assert house.daemon("pause", "leased").returncode == 0


@pytest.mark.slow
def test_a_run_watched_to_its_end_says_what_follows(house: House) -> None:
    house.spawn("whole", "--rounds", "9")
    house.spawn("cut")
    with overwatch(house, "whole", columns=120) as tui:
        tui.wait_for("COMPLETED")
        tui.wait_for("is complete; go on: esper-daemon start --detach --resume whole --rounds 18")
        tui.press("q")
        assert tui.process.wait(300) == 0
    with overwatch(house, "cut") as tui:
        tui.wait_for("LIVE")
        assert house.daemon("stop", "cut").returncode == 0
        tui.wait_for(f"STOPPED BY uid {os.getuid()}")
        tui.wait_for("esper-daemon start --detach --resume")
    listed = house.daemon("list", "--all").stdout
    assert re.search(r"whole .* COMPLETED ", listed)
    assert re.search(rf"cut .* STOPPED +by uid {os.getuid()} \(esper-daemon/", listed)
    assert "it is complete: 9 rounds are done" in house.daemon("doctor", "whole").stdout
    assert f"it was stopped by uid {os.getuid()}" in house.daemon("doctor", "cut").stdout
    assert "(COMPLETED)" in house.daemon("status", "whole").stderr


@pytest.mark.slow
def test_a_terminal_that_goes_away_takes_the_tui_with_it(house: House) -> None:
    house.spawn("gone")
    with overwatch(house, "gone") as tui:
        tui.wait_for("LIVE")
        tui.hang_up()
        assert tui.process.wait(300) == 129
    assert house.ask("status", "gone")["state"] == "TRAINING"


@pytest.mark.slow
def test_once_prints_a_frame(house: House) -> None:
    house.spawn("once", small=False)
    result = house.run(*TERMINAL, "--once", "--after-round", "1", "once")
    assert result.returncode == 0, result.stderr
    assert "r0c0" in result.stdout
    rows = re.findall(r"^\W*(0\d) \w+ +([\d.]+)", result.stdout, re.MULTILINE)
    assert [env for env, _ in rows] == [f"{env:02d}" for env in range(8)]
    accuracy = [float(percent) for _, percent in rows]
    assert sum(accuracy) / len(accuracy) > 10.0, "above chance"


@pytest.mark.slow
def test_moments_of_a_live_run_are_those_of_its_journal(house: House) -> None:
    house.spawn("past", "--rounds", "0")
    with overwatch(house, "past") as tui:
        tui.wait_for("LIVE")
        tui.wait_for(" 03 ")
        joined = len(house.journal("past", "epoch"))
        eventually(lambda: (tui.read(0.05), len(house.journal("past", "epoch")) > joined + 12)[1])
        tui.press(" ")
        text = tui.wait_for("FROZEN")
        clock = re.compile(r" r(\d+) .*e(\d+)/")

        def place(text: str) -> tuple[int, int]:
            """Round and epoch that the clock shows."""
            found = clock.search(text)
            return (int(found[1]), int(found[2])) if found else (0, 0)

        for _ in range(3):
            before = place(text)
            tui.press(",")
            text = tui.wait_for(lambda text, before=before: (0, 0) < place(text) < before)  # type: ignore[misc]
        events = house.journal("past", "epoch")

        def shows_its_epoch(text: str) -> bool:
            """Whether the table has the accuracies of the epoch that the clock shows."""
            then = [e["data"] for e in events if (e["ctx"]["round"], e["ctx"]["epoch"]) == place(text)]
            shown = set(re.findall(r"^[▶ ] 0\d \w+ +(\d+\.\d)", text, re.MULTILINE))
            return bool(then) and shown == {f"{100 * share:.1f}" for share in then[-1]["val_accuracy"]}

        chosen = place(tui.wait_for(shows_its_epoch))
        length = len(events)
        eventually(lambda: (tui.read(0.05), len(house.journal("past", "epoch")) > length + 3)[1])
        assert place(tui.text) == chosen, "what comes in meanwhile does not move it"
        tui.press("0")
        tui.wait_for(lambda text: "FROZEN" not in text)
        tui.press(":go_to r1e1000\r")
        tui.wait_for("is not held")


@pytest.mark.nightly
def test_joining_takes_less_than_a_second_of_cpu(house: House) -> None:
    """More than starting the program does, after dozens of rounds; the least of so many as it takes."""
    house.spawn("joined")
    eventually(lambda: len(house.journal("joined", "round.finished")) >= 20)
    assert house.daemon("pause", "joined").returncode == 0

    def cpu_seconds(*words: str) -> tuple[float, str]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = house.run(*TERMINAL, *words, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout

    costs: list[float] = []
    while not costs or (min(costs) >= 1.0 and len(costs) < 10):
        starts, _ = cpu_seconds("--help")
        joins, frame = cpu_seconds("--once", "joined")
        costs.append(joins - starts)
        assert re.search(r"^\W*03 \w+ +[\d.]+", frame, re.MULTILINE), "the last env's row is there"
    assert min(costs) < 1.0
