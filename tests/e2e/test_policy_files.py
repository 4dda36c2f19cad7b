"""Policies that travel: out of a run into a file, and from there to hosts of other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import nightly

from .conftest import House, open_house

SHORT = ("envs.count=2", "ppo.minibatches=1", "episode_epochs=6", "task.batches_per_epoch=2")
SMALL_HOSTS = ("host.channels=4,4,4", "policy.hidden=16", "evaluation.rounds=1", "evaluation.hosts=2")
LARGER = ("host.channels=8,12,16", "host.kernel=3")
CIFAR_SIZED = ("task.dataset=synthetic", "task.batch_size=8", "host.channels=4,4,4", "host.kernel=3")

pytestmark = pytest.mark.slow


def words(*sets: str) -> list[str]:
    return [word for item in (*SHORT, *sets) for word in ("--set", item)]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """One for all tests here: each starts runs of other names, with the same policy."""
    with open_house() as house:
        yield house


@pytest.fixture(scope="module")
def exported(house: House) -> Path:
    """The policy of a run of two rounds."""
    assert house.daemon("start", "small", "--rounds", "2", *words(*SMALL_HOSTS)).returncode == 0
    file = house.home / "small.policy"
    newest = ("--checkpoint", "round-000002.pt")
    assert house.daemon("policy", "export", "small", str(file), *newest).returncode == 0
    return file


@pytest.mark.parametrize("hosts", [LARGER, nightly(CIFAR_SIZED)])
def test_policy_of_small_hosts_decides_for_larger_ones(
    house: House, exported: Path, hosts: tuple[str, ...]
) -> None:
    ops = []
    for name in (f"{hosts[0][:4]}-one", f"{hosts[0][:4]}-two"):
        acts = ("--policy", str(exported), "--no-learn", "--greedy")
        result = house.daemon("start", name, "--rounds", "2", *acts, *words(*hosts, f"seed={len(ops) + 1}"))
        assert result.returncode == 0, result.stderr
        assert not house.journal(name, "ppo.update"), "it does not learn"
        first = house.journal(name, "epoch")[0]
        ops.append(first["data"]["op"])
    assert ops[0] == ops[1], "greedy: whatever the seed, the first op is the same"


@pytest.mark.nightly
def test_policy_learns_on_where_it_may(house: House, exported: Path) -> None:
    result = house.daemon("start", "on", "--rounds", "1", "--policy", str(exported), *words(*LARGER))
    assert result.returncode == 0, result.stderr
    assert len(house.journal("on", "ppo.update")) == 1
    assert house.daemon("start", "--resume", "on", "--rounds", "2").returncode == 0
    assert len(house.journal("on", "ppo.update")) == 2


@pytest.mark.nightly
def test_unattended_start_repeats_with_its_policy(house: House, exported: Path) -> None:
    line = ("start", "unattended", "--or-resume", "--policy", str(exported), *words(*LARGER))
    assert house.daemon(*line, "--rounds", "1").returncode == 0
    again = house.daemon(*line, "--rounds", "2")
    assert again.returncode == 0, again.stderr
    assert f"run unattended goes on with its own policy, not with {exported}" in again.stderr
    assert [event["ctx"]["round"] for event in house.journal("unattended", "round.finished")] == [1, 2]


def test_show_tells_where_a_policy_comes_from(house: House, exported: Path) -> None:
    text = house.daemon("policy", "show", str(exported)).stdout
    for line in (
        "run          small after round 2, 4 episodes of 6 epochs",
        "trained on   digits; hosts cnn 4,4,4; reward shaped",
        "fits         hosts with 3 slots; blueprints norm, attention, depthwise, conv_light",
        "held-out hosts (seed 2)",
        "lead over no_growth ",
    ):
        assert line in text
    about = house.ask("policy", "show", str(exported))
    assert about["policy"]["hidden"] == 16
    checkpoint = house.run_folder("small") / "checkpoints" / "round-000002.pt"
    other = house.home / "other.policy"
    result = house.daemon("policy", "export", str(checkpoint), str(other))
    assert "policy of small after round 2" in result.stdout


@pytest.mark.parametrize("which", [slice(0, None, 4), nightly(slice(None))], ids=["some", "all"])
def test_what_cannot_be_done_is_said_in_a_line(house: House, exported: Path, which: slice) -> None:
    start = ("start", "bad", "--rounds", "1", "--policy", str(exported))
    checkpoint = house.run_folder("small") / "checkpoints" / "best.pt"
    cases = (
        ((*start, *words("host.channels=4,4")), 9, "it grows hosts with 3 slots, and these have 2"),
        (
            (*start, *words("seeds.blueprints=norm")),
            9,
            "set seeds.blueprints=norm,attention,depthwise,conv_light",
        ),
        ((*start, *words("policy.hidden=8")), 9, "was made with 16; leave it out"),
        ((*start[:-1], "nowhere", *words()), 9, "cannot be read: No such file or directory"),
        ((*start[:-1], str(checkpoint), *words()), 9, "is not a policy, but a checkpoint"),
        (("policy", "export", "small", str(exported)), 10, "exists; choose another name, or remove it"),
        (("policy", "export", "nobody", "x"), 3, "no run nobody"),
        (("policy", "export", "small", "x", "--checkpoint", "never"), 10, "no checkpoint never"),
        (("policy", "export", "small", "/proc/x"), 10, "cannot write /proc/x"),
        (("policy", "show", str(checkpoint)), 9, "is not a policy"),
        (("start", "--resume", "small", "--set", f"policy.file={exported}"), 9, "leave it out"),
    )
    for arguments, code, reason in cases[which]:
        result = house.daemon(*arguments)
        assert result.returncode == code, (arguments, result.stderr)
        (line,) = result.stderr.strip().splitlines()
        assert reason in line, (arguments, line)
    assert not house.run_folder("bad").exists()
    for arguments in (("start", "x", "--greedy"), ("start", "--resume", "small", "--policy", str(exported))):
        assert house.daemon(*arguments).returncode == 2
