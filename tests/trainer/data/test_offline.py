"""TinyStories from a file: registered, encoded and learnt in a process that may open no connection."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.nursery import run_python
from tests.trainer.data import folders

pytestmark = pytest.mark.slow
OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname") or (
        event == "socket.connect" and isinstance(arguments[1], tuple)
    ):
        raise SystemExit(f"a connection: {event} {arguments}")

sys.addaudithook(refuse)
from esper_overwatch.trainer.cli.main import main
main(sys.argv[1:])
"""
SMALL = (
    "device=cpu",
    "rounds=1",
    "episode_epochs=3",
    "envs.count=2",
    "envs.group_size=2",
    "task.batches_per_epoch=2",
    "task.batch_size=4",
    "policy.kind=fixed",
)
HOST = ("task.vocabulary=400", "task.context=16", "host.width=24", "host.mlp=48", "host.depth=2")
IMAGES = ("host.channels=4,8", "host.blocks=1", "task.augment=")


def offline(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"ESPER_HOME": str(home), "XDG_RUNTIME_DIR": str(home), "OMP_NUM_THREADS": "1"}
    return run_python(("-c", OFFLINE, *words), os.environ | variables)


def started(home: Path, preset: str, *sets: str) -> subprocess.CompletedProcess[str]:
    words = [word for item in (*SMALL, *sets) for word in ("--set", item)]
    return offline(home, "start", "one", "--preset", preset, *words)


@pytest.mark.nightly
def test_tinystories_trains_from_a_file_without_a_network(tmp_path: Path) -> None:
    file = tmp_path / "TinyStories-train.txt"
    story = "Once upon a time there was a {} cat. It was happy.\n<|endoftext|>\n"
    file.write_text("".join(story.format(word) for word in ("big", "red", "old", "sad") * 200))
    missing = started(tmp_path / "home", "tinystories", *HOST)
    assert missing.returncode == 9
    assert "no dataset named 'tinystories'" in missing.stderr
    assert "esper-daemon data NAME --from PATH" in missing.stderr
    assert offline(tmp_path / "home", "data", "tinystories", "--from", str(file)).returncode == 0
    done = started(tmp_path / "home", "tinystories", *HOST)
    assert done.returncode == 0, done.stderr
    told = offline(
        tmp_path / "home",
        "query",
        "one",
        "--csv",
        'SELECT tokens_per_character BETWEEN 0.01 AND 0.5 AS fewer FROM events."run.started"',
    )
    assert told.stdout.splitlines()[1:] == ["True"], told.stderr
    file.unlink()
    gone = offline(tmp_path / "home", "start", "two", "--preset", "tinystories")
    assert gone.returncode == 9
    assert f"{file}: no such file" in gone.stderr
    assert len(gone.stderr.splitlines()) == 1


def test_a_variant_of_cifar_trains_under_its_own_name(tmp_path: Path) -> None:
    """Generated files are not the published ones: refused under the published name, as the docs say."""
    folder = folders.learnable_cifar_folder(tmp_path / "files", 10, 1000, 200)
    refused = offline(tmp_path / "home", "data", "cifar10", "--from", str(folder))
    assert refused.returncode == 9
    assert "1000 training and 200 test images" in refused.stderr
    assert offline(tmp_path / "home", "data", "mine", "--from", str(folder)).returncode == 0
    done = started(tmp_path / "home", "cifar10", "task.dataset=mine", *IMAGES)
    assert done.returncode == 0, done.stderr
