"""A text, and what other packages bring, as a user trains them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.packages import POINTWISE, install

from .conftest import SMALL, House

TASK = (
    POINTWISE
    + """

from esper_overwatch.trainer.data.text import Text


def rhyme():
    return Text.of("rhyme", "row, row, row your boat, gently down the stream. " * 60)


class Squeeze(nn.Conv2d):
    def __init__(self, channels, size):
        super().__init__(channels, channels, 2)
"""
)
SMALL_TEXT = tuple(option for option in SMALL if not option.startswith("host.channels"))
OPTIONS = (
    *SMALL_TEXT,
    "task.dataset=rhyme",
    "task.context=16",
    "task.batch_size=8",
    "policy.kind=fixed",
    "seeds.blueprints=norm,pointwise",
    "episode_epochs=8",
)


@pytest.fixture
def packages(house: House, tmp_path: Path) -> None:
    """An installed distribution with a task and two blueprints, one of them of no use."""
    site = install(
        tmp_path / "site",
        "garden_centre",
        TASK,
        esper_tasks={"rhyme": "rhyme"},
        esper_blueprints={"pointwise": "pointwise", "squeeze": "Squeeze"},
    )
    paths = [str(site), house.environment.get("PYTHONPATH", "")]
    house.environment["PYTHONPATH"] = ":".join(path for path in paths if path)


def sets(*options: str) -> list[str]:
    return [word for option in options for word in ("--set", option)]


@pytest.mark.slow
@pytest.mark.usefixtures("packages")
def test_task_and_blueprint_of_a_package_are_trained(house: House) -> None:
    begun = house.daemon("start", "rowing", "--rounds", "1", *sets(*OPTIONS))
    assert begun.returncode == 0, begun.stderr
    (started,) = house.journal("rowing", "run.started")
    assert started["data"]["task"] == "rhyme"
    assert started["data"]["blueprints"] == ["norm", "pointwise"]
    assert started["data"]["config"]["host"]["family"] == "transformer"
    planted = [e for e in house.journal("rowing") if e["data"].get("blueprint") == "pointwise"]
    assert planted, "the fixed schedule plants the last blueprint"
    assert len(house.journal("rowing", "round.finished")) == 1
    rows = {row["name"]: row for row in house.ask("data")}
    assert rows["rhyme"]["format"] == "package"


@pytest.mark.slow
@pytest.mark.usefixtures("packages")
def test_a_blueprint_that_changes_the_shape_stops_the_start(house: House) -> None:
    options = (*SMALL, "policy.kind=fixed", "seeds.blueprints=norm,squeeze")
    refused = house.daemon("start", "bad", *sets(*options))
    assert refused.returncode == 9
    assert "entry point esper.blueprints: squeeze = garden_centre:Squeeze of garden_centre" in refused.stderr
    assert "a seed must keep the shape" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not house.run_folder("bad").exists()


@pytest.mark.slow
def test_the_shipped_text_is_learned_and_a_registered_one_resumed(house: House, tmp_path: Path) -> None:
    small = (*SMALL_TEXT, "task.batch_size=8", "host.width=16")
    begun = house.daemon("start", "alice", "--rounds", "1", *sets(*small, "task.dataset=text"))
    assert begun.returncode == 0, begun.stderr
    (started,) = house.journal("alice", "run.started")
    assert started["data"]["blueprints"] == ["norm", "lora", "attention", "mlp"]
    assert started["data"]["slots"] == ["r0c0", "r0c1", "r0c2"]
    path = tmp_path / "mine.txt"
    path.write_text("es war einmal ein müller, der hatte eine mühle. " * 40, encoding="utf-8")
    assert house.ask("data", "mine", "--from", str(path))["format"] == "text"
    begun = house.daemon("start", "grimm", "--rounds", "1", *sets(*small, "task.dataset=mine"))
    assert begun.returncode == 0, begun.stderr
    resumed = house.daemon("start", "--resume", "grimm", "--rounds", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert len(house.journal("grimm", "round.finished")) == 2
