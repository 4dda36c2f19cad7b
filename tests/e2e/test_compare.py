"""Comparisons as real processes: ended by a signal and gone on with; a policy's file among the policies."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from .conftest import DAEMON, SMALL, House, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SETS = [word for item in (*SMALL, "envs.threads=1") for word in ("--set", item)]


def interrupt(house: House, words: list[str], cells: Path) -> tuple[int, str, str]:
    """Send control-C once the first training is done; exit code, output, and what was said."""
    with house.open(*DAEMON, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(lambda: list(cells.glob("train-ppo-1-*.json")), seconds=600, every=0.01)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate()
    return process.returncode, printed, said


@pytest.mark.nightly
def test_interrupted_comparison_goes_on_where_it_was(house: House, tmp_path: Path) -> None:
    assert house.daemon("start", "small", "--rounds", "1", *SETS, timeout=600).returncode == 0
    file = house.home / "mine.policy"
    assert house.daemon("policy", "export", "small", str(file), timeout=600).returncode == 0
    for episodes in ("16", "64", "256"):  # a busy machine can have done them all before the signal comes
        cells = tmp_path / episodes
        sizes = ["--seeds", "2", "--episodes", episodes, "--hosts", "2"]
        words = ["compare", "--policy", f"no_growth,{file},ppo", *sizes, "--to", str(cells), *SETS, "--json"]
        code, printed, said = interrupt(house, words, cells)
        if code != 0 and not list(cells.glob("play-ppo-2-*.json")):
            break
    assert code == 130, said
    assert said.splitlines()[-1].startswith(f"esper-daemon: interrupted; {cells} keeps what is done, ")
    assert "; go on with: esper-daemon compare " in said.splitlines()[-1]
    assert not printed, "no figures of what is half done"
    (trained,) = cells.glob("train-ppo-1-*.json")
    before = trained.stat().st_mtime_ns

    resumed = house.daemon(*words, timeout=600)
    assert resumed.returncode == 0, resumed.stderr
    assert trained.stat().st_mtime_ns == before, "what was finished is not computed again"
    policies = json.loads(resumed.stdout)["policies"]
    assert [policy["name"] for policy in policies] == ["no_growth", str(file), "ppo"]
    assert [policy["seeds"] for policy in policies] == [1, 1, 2]
