"""A run that was stopped in mid-episode and resumed writes the journal of one that never was."""

from __future__ import annotations

import pytest

from esper_overwatch.protocol.runs import RunFolder

from .conftest import House, stop_in_mid_episode
from .courses import assert_same, course

OF_THE_BOOT = ("run.", "checkpoint.", "log", "system", "command.", "telemetry.", "postmortem.", "journal.")


COURSE = (
    "episode_epochs=24",
    "ppo.schedule=cosine",
    "task.mixture=digits,texture,histogram",
    "task.instances=2",
    "host.slot_rows=2",
    "envs.copies=2",
    "policy.decision_epochs=1,3,9",
)
"""With all that changes from round to round and from host to host."""
HOSTS = tuple(f"env{env:02d}" for env in range(4))


@pytest.mark.slow
def test_resume_in_mid_episode_equals_the_uninterrupted_run(house: House) -> None:
    words = ("--rounds", "3", *(word for item in COURSE for word in ("--set", item)))
    assert house.spawn("whole", *words).wait(300) == 0
    cut = stop_in_mid_episode(
        house,
        lambda name: house.spawn(name, *words),
        lambda name: any(e["ctx"]["round"] == 2 for e in house.journal(name, "epoch")),
    )
    assert house.spawn(cut, "--resume", cut).wait(300) == 0
    assert_same(course(house, "whole", OF_THE_BOOT), course(house, cut, OF_THE_BOOT))


@pytest.mark.slow
def test_unattended_resume_passes_over_a_damaged_checkpoint(house: House) -> None:
    words = ("--rounds", "2", "--set", "episode_epochs=8")
    assert house.spawn("cut", *words).wait(300) == 0
    folder = house.run_folder("cut") / "checkpoints"
    before, newest = sorted(folder.glob("round-*.pt"))[-2:]
    newest.write_bytes(newest.read_bytes()[:1000])
    refused = house.daemon("start", "--resume", "cut", "--rounds", "3")
    assert refused.returncode == 10
    assert "--or-resume" in refused.stderr
    resumed = house.daemon("start", "cut", "--or-resume", "--rounds", "3")
    assert resumed.returncode == 0, resumed.stderr
    log = (house.run_folder("cut") / "daemon.log").read_text(encoding="utf-8")
    assert f"{newest.name} fails its checksum" in log
    assert f"the run goes on from {before.name}" in log
    assert [e["ctx"]["round"] for e in house.journal("cut", "round.finished")] == [1, 2, 2, 3]


@pytest.mark.slow
def test_start_killed_before_its_configuration_is_begun_again(house: House) -> None:
    with RunFolder.claim("cut", home=house.home) as folder:
        folder.events.touch()  # as the journal is opened, before the hosts are built
    assert house.daemon("start", "cut", "--or-resume", "--rounds", "1").returncode == 0
    assert [e["ctx"]["round"] for e in house.journal("cut", "round.finished")] == [1]
    assert house.daemon("start", "cut", "--rounds", "1").returncode == 8, "it has been trained now"


@pytest.mark.slow
def test_resumed_run_tells_its_active_anomalies_again(house: House) -> None:
    sick = ("--set", "anomalies.gradient_exploding=1e-9,1e-9")
    assert house.spawn("r", "--rounds", "1", *sick).wait(300) == 0
    assert house.spawn("r", "--resume", "r", "--rounds", "2").wait(300) == 0
    (_, second) = house.journal("r", "run.started")
    told = [event for event in house.journal("r", "anomaly") if event["data"]["source"] in HOSTS]
    exploding = [e for e in told if e["data"]["kind"] == "gradient_exploding" and e["data"]["active"]]
    raised, again = exploding[: len(HOSTS)], exploding[len(HOSTS) : 2 * len(HOSTS)]
    assert [event["data"]["source"] for event in again] == list(HOSTS)
    assert all(event["seq"] > second["seq"] and event["ctx"]["round"] == 1 for event in again)
    assert [e["data"]["since"] for e in again] == [e["data"]["since"] for e in raised]
    assert "  critical: exploding gradients, " in house.daemon("doctor", "r").stdout


@pytest.mark.nightly
def test_refused_resume_leaves_the_configuration_alone(house: House) -> None:
    assert house.spawn("r", "--rounds", "1", "--set", "episode_epochs=3").wait(300) == 0
    files = [house.run_folder("r") / name for name in ("config.json", "config.sources.json")]
    before = [file.read_bytes() for file in files]
    for words, code in (
        (("--seed", "5"), 10),
        (("--checkpoint", "nosuch", "--set", "telemetry.level=DEBUG"), 10),
        (("--set", "metrics.listen=192.0.2.1:5555", "--set", "metrics.allow_unauthenticated=true"), 9),
    ):
        refused = house.daemon("start", "--resume", "r", "--rounds", "2", *words)
        assert refused.returncode == code, refused.stderr
        assert [file.read_bytes() for file in files] == before, words
    resumed = house.daemon("start", "r", "--or-resume", "--rounds", "2")
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.nightly
def test_a_run_goes_back_to_a_chosen_checkpoint(house: House) -> None:
    words = ("--rounds", "4", "--set", "episode_epochs=8", "--set", "checkpoint.keep=1")
    assert house.spawn("r", "--rounds", "1", *words[2:]).wait(300) == 0
    folder = house.run_folder("r") / "checkpoints"
    (folder / "round-000001.pt").rename(folder / "round-000001-first.pt")
    assert house.daemon("start", "--resume", "r", *words).returncode == 0
    assert sorted(p.name for p in folder.glob("round-*")) == ["round-000001-first.pt", "round-000004.pt"]
    refused = house.daemon("start", "--resume", "r", "--checkpoint", "nope", *words)
    assert refused.returncode == 10
    assert "there are first, round-000004.pt, best" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    again = house.daemon("start", "--resume", "r", "--checkpoint", "first", "--rounds", "2", *words[2:])
    assert again.returncode == 0, again.stderr
    assert [e["ctx"]["round"] for e in house.journal("r", "round.finished")] == [1, 2, 3, 4, 2]
    listed = house.daemon("checkpoints", "r").stdout
    assert "round-000001-first.pt" in listed
    assert "round-000002.pt" in listed
    assert "best" in listed
    assert house.daemon("checkpoints", "r", "--delete", "first").returncode == 0
    assert not list(folder.glob("*first*"))
    assert house.daemon("start", "other", "--checkpoint", "first").returncode == 2
