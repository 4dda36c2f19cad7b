"""Memory: where it is short the run tells what would fit; a measured size fits; large tensors ask for huge
pages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from esper_overwatch.trainer.checkpoint import load as load_checkpoint
from esper_overwatch.trainer.compute.execution_plan import Execution

from .conftest import DAEMON, House, eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits a process by /proc")
SHORT_OF_MEMORY = """
import resource, sys
import esper_overwatch.trainer.daemon.daemon
from esper_overwatch.trainer.cli.main import main
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 700 * 2**20,) * 2)
main(sys.argv[1:])
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE = (
    "envs.count=16",
    "task.batch_size=1024",
    "host.channels=32,8",
    "envs.threads=1",
    "policy.kind=random",
    "task.batches_per_epoch=1",
    "episode_epochs=2",
    "seeds.blueprints=norm",
    "ppo.minibatches=1",
)


def start(house: House, *sets: str) -> subprocess.CompletedProcess[str]:
    """With an arena per thread malloc would take hundreds of MiB of addresses, which are limited here."""
    words = [word for item in (*LARGE, *sets) for word in ("--set", item)]
    command = ("-c", SHORT_OF_MEMORY, "start", "short", "--rounds", "1", *words)
    return house.run(*command, environment={"MALLOC_ARENA_MAX": "1"})


@pytest.mark.slow
def test_too_large_group_is_refused_with_size_that_fits(
    house: House,
) -> None:
    refused = start(house, "envs.group_size=16")
    assert refused.returncode == 9, refused.stderr
    (line,) = refused.stderr.splitlines()
    assert "envs.group_size = 16" in line
    fits = int(line.split(";")[1].split()[0])
    assert 1 <= fits < 16
    assert house.journal("short") == [], "nothing was announced"


@pytest.mark.slow
def test_measured_size_fits_memory_and_is_kept(house: House) -> None:
    result = start(house)
    assert result.returncode == 0, result.stderr
    told = house.journal("short", "run.started")[0]["data"]["execution"]
    assert told["group_size"] < 16
    saved = load_checkpoint(house.run_folder("short") / "checkpoints" / "round-000001.pt")
    assert saved["execution"] == told
    assert Execution.from_dict(saved["execution"]) == Execution(**told)


@pytest.mark.slow
@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages to ask for")
@pytest.mark.parametrize("asked", ["", "0"])
def test_large_tensors_ask_for_huge_pages(house: House, asked: str) -> None:
    environment = {"THP_MEM_ALLOC_ENABLE": asked} if asked else {}
    words = ("start", "it", "--set", "task.dataset=synthetic", "--set", "envs.count=2")
    process = house.open(*DAEMON, *words, environment=environment)
    eventually(lambda: house.journal("it", "epoch"))
    areas = Path(f"/proc/{process.pid}/smaps").read_text().splitlines()
    flags = [line.split() for line in areas if line.startswith("VmFlags:")]
    assert any("hg" in words for words in flags) == (not asked), "the user's own setting holds"
