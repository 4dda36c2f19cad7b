"""The bundle of an abnormal end: whole, or not there and said."""

from __future__ import annotations

import json
import logging
import math
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.messages.events import LogLine, RoundStarted
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon import postmortem
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.doctor.bundle import PostmortemReport, list_bundles
from esper_overwatch.trainer.hosts.population import Population
from tests.protocol.harness import until

torch.set_num_threads(1)
CONFIG = settings.load(sets=["envs.count=4", "ppo.minibatches=2", "host.channels=4,8", "ppo.clip=0.25"])
PARTS = {"report.json", "exception.txt", "stacks.txt", "events.ndjson", "config.toml", "environment.json"}


class Rig:
    """A live server and a population, about to end badly."""

    def __init__(self, home: Path) -> None:
        self.run = RunFolder.claim("rig", home=home)
        self.server = Server(self.run, hello={})
        self.server.start()
        self.population = Population(CONFIG, load("digits"), torch.device("cpu"))
        self.population.begin_episode(1)

    def write(self, cause: BaseException | None = None, **changes: Any) -> Path | None:
        subject = postmortem.PostmortemSubject(
            folder=self.run.postmortem,
            server=self.server,
            config=CONFIG,
            device=torch.device("cpu"),
            population=self.population,
        )
        known = {"run": "rig", "boot": self.server.boot, "reason": "training failed", "exit_code": 11}
        report = PostmortemReport(**(known | {"error": "e", "at": 1, "round": 2, "epoch": 3} | changes))
        return postmortem.write(subject, report, cause)


@pytest.fixture
def rig(short_home: Path) -> Iterator[Rig]:
    made = Rig(short_home)
    try:
        yield made
    finally:
        made.server.close()
        made.run.release()


def boom() -> BaseException:
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise RuntimeError("then") from cause
    except RuntimeError as error:
        return error


def test_the_bundle_holds_its_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_PPO_CLIP", "0.25")
    monkeypatch.setenv("ESPER_SECRET_TOKEN", "do-not-tell")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    parked = threading.Event()
    thread = threading.Thread(target=parked.wait, name="parked")
    thread.start()
    for n in range(postmortem.LAST_EVENTS + 50):
        rig.server.emitter.emit(RoundStarted(rounds=n))
    path = rig.write(boom())
    parked.set()
    thread.join()
    assert path is not None
    assert path == rig.run.postmortem / rig.server.boot
    assert {p.name for p in path.iterdir()} == PARTS
    events = [decode_line(line) for line in (path / "events.ndjson").read_bytes().splitlines()]
    assert [e.data.rounds for e in events] == list(range(50, postmortem.LAST_EVENTS + 50))
    text = (path / "exception.txt").read_text()
    assert "KeyError: 'first'" in text
    assert "RuntimeError: then" in text
    stacks = (path / "stacks.txt").read_text()
    assert "test_the_bundle_holds_its_parts" in stacks
    assert "parked" in stacks or "in wait" in stacks
    tree = tomllib.loads((path / "config.toml").read_text())
    assert tree["ppo"]["clip"] == 0.25
    assert settings.load(file=path / "config.toml") == CONFIG
    environment = json.loads((path / "environment.json").read_bytes())
    assert environment["packages"]["torch"]
    assert environment["variables"]["ESPER_PPO_CLIP"] == "0.25"
    everything = b"".join(p.read_bytes() for p in path.iterdir())
    assert b"do-not-tell" not in everything
    assert path.stat().st_mode & 0o077 == 0
    report = json.loads((path / "report.json").read_bytes())
    assert (report["reason"], report["round"], report["missing"]) == ("training failed", 2, {})


def test_the_sick_envs_rows_are_read_back_without_running_code(rig: Rig) -> None:
    weight = next(iter(rig.population.groups[0].weights.values()))
    weight.data[2].view(-1)[0] = math.nan
    path = rig.write()
    assert path is not None
    found = torch.load(path / "sick_env.pt", weights_only=True)
    assert found["env"] == 2
    assert any(rows.isnan().any() for name, rows in found["rows"].items() if name.startswith("weights."))
    assert json.loads((path / "report.json").read_bytes())["sick_env"] == 2


def test_failed_part_is_named_and_others_are_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(rig.population, "failed_env", dead)
    path = rig.write(boom())
    assert path is not None
    assert {p.name for p in path.iterdir()} == PARTS
    assert "device-side" in json.loads((path / "report.json").read_bytes())["missing"]["sick_env.pt"]


def test_a_full_disk_leaves_nothing_half_made_and_raises_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(postmortem, "_environment", full)
    with caplog.at_level(logging.ERROR):
        assert rig.write(boom()) is None
    assert list(rig.run.postmortem.iterdir()) == []
    assert "No space left on device" in caplog.text


def test_a_folder_that_cannot_be_made_raises_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.run.postmortem.write_text("in the way")
    assert rig.write(boom()) is None
    assert str(rig.run.postmortem) in caplog.text


def test_what_a_dead_wire_left_in_its_queues_is_there(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.server.emitter.emit(RoundStarted(rounds=1))
    assert rig.server.flush()

    def dead() -> bool:
        raise RuntimeError("no more")

    monkeypatch.setattr(rig.server._publisher, "tick", dead)
    until(lambda: rig.server.error)
    rig.server.emitter.emit(LogLine(level="ERROR", logger="t", message="the last words"))
    path = rig.write()
    assert path is not None
    types = [decode_line(line).type for line in (path / "events.ndjson").read_bytes().splitlines()]
    assert types[0] == "round.started"
    assert types[-1] == "log"


def test_only_the_newest_bundles_stay(rig: Rig) -> None:
    for n in range(postmortem.MAX_BUNDLES + 3):
        path = rig.write(boot=f"{n:08d}")
        assert path is not None
    names = [p.name for p in list_bundles(rig.run.postmortem)]
    assert len(names) == postmortem.MAX_BUNDLES
    assert names[-1] == f"{postmortem.MAX_BUNDLES + 2:08d}"


def test_flush_waits_for_what_was_emitted(rig: Rig) -> None:
    for n in range(3_000):
        rig.server.emitter.emit(RoundStarted(rounds=n))
    assert rig.server.flush(20.0)
    assert rig.run.events.read_bytes().count(b'"round.started"') == 3_000
