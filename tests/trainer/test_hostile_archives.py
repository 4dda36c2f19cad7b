"""Policies and checkpoints from strangers: each loads or is refused in one line, in little memory."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.trainer.checkpoint import FORMAT, load, seal, to_archive
from esper_overwatch.trainer.checkpoint_files import CheckpointError
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.saved_policy import FORMAT as POLICY_FORMAT
from esper_overwatch.trainer.policy.saved_policy import SavedPolicy
from tests.trainer.command import esper

SMALL = ("envs.count=2", "ppo.minibatches=1", "policy.hidden=16")


def checkpoint() -> dict[str, Any]:
    """As a run's, without what only the training itself reads."""
    cfg = settings.load(sets=SMALL)
    leads = {"no_growth": [0.25, 0.1, 0.4]}
    newest = {"round": 2, "hosts": 9, "seed": 2, "return": 0.5, "test_accuracy": 0.5, "leads": leads}
    trainer = {"round": 7, "epoch": 3, "agent": Agent(cfg, slots=3, host_parameters=100).state_dict()}
    trainer["evaluation"] = {"newest": {**newest, "added_parameters": 3.0}}
    return {"format": FORMAT, "trainer": trainer, "config": msgspec.json.encode(cfg).decode()}


def policy() -> dict[str, Any]:
    """As `policy export` writes it."""
    saved = SavedPolicy.of_checkpoint(checkpoint(), "mine", "1.0.0", "best.pt")
    about = msgspec.json.encode(saved.about).decode()
    return {"format": POLICY_FORMAT, "about": about, "network": saved.network}


def repacked(
    state: dict[str, Any], change: Callable[[str, bytes], bytes], *, method: int = zipfile.ZIP_STORED
) -> bytes:
    """An archive of `state` with changed entries and the right seal: what a stranger can make."""
    archive = io.BytesIO()
    with zipfile.ZipFile(to_archive(state)) as old, zipfile.ZipFile(archive, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    seal(archive)
    return archive.getvalue()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, removed or put in."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed))
        kind = chance.random()
        if kind < 0.7:
            changed[at] = chance.randrange(256)
        elif kind < 0.85:
            del changed[at]
        else:
            changed.insert(at, chance.randrange(256))
    return bytes(changed)


@pytest.mark.parametrize("make", [policy, checkpoint])
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.nightly)])
def test_mutated_files_load_or_give_one_line(
    tmp_path: Path, make: Callable[[], dict[str, Any]], count: int
) -> None:
    """Before, 19 of 400 policies gave a TypeError and the like."""
    chance, path, other = random.Random(f"{make.__name__} {count}"), tmp_path / "a.pt", tmp_path / "b"
    words = ["show", str(path)] if make is policy else ["export", str(path), str(other)]
    state, num_refused = make(), 0
    for _ in range(count):
        path.write_bytes(
            repacked(state, lambda name, raw: mutated(raw, chance) if name.endswith("data.pkl") else raw)
        )
        answer = esper("policy", *words)
        other.unlink(missing_ok=True)
        if answer.exit_code:
            assert isinstance(answer.exception, SystemExit), answer.exception
            assert answer.output.count("\n") == 1, answer.output
            num_refused += 1
    assert count / 3 < num_refused < count, "some are refused, and some are as good as before"


NUM_BYTES = 1 << 28


def with_size(name: str, raw: bytes) -> bytes:
    """Tells of a tensor of 8 values that its storage and the tensor itself have 256 MiB."""
    many = (NUM_BYTES // 4).to_bytes(4, "little")
    if name.endswith("data.pkl"):
        return raw.replace(b"K\x08t", b"J" + many + b"t").replace(b"K\x08\x85", b"J" + many + b"\x85")
    return raw.ljust(NUM_BYTES, b"\0") if "/data/" in name else raw


def deflated() -> bytes:
    return repacked({"format": FORMAT, "w": torch.zeros(8)}, with_size, method=zipfile.ZIP_DEFLATED)


def beyond_its_entry() -> bytes:
    """Its tensor goes on behind its stored bytes, and behind the file's."""
    state = {"format": FORMAT, "w": torch.zeros(8)}
    return repacked(state, lambda name, raw: raw if "/data/" in name else with_size(name, raw))


def expanded() -> bytes:
    return to_archive({"format": FORMAT, "w": torch.zeros(1).expand(NUM_BYTES // 4)}).getvalue()


def nested() -> bytes:
    """Ten references to ten references, and so on: a few hundred bytes, and a billion values."""
    value: list[Any] = [0]
    for _ in range(9):
        value = [value] * 10
    return to_archive({"format": FORMAT, "w": value}).getvalue()


def in_itself() -> bytes:
    value: list[Any] = []
    value.append(value)
    return to_archive({"format": FORMAT, "w": value}).getvalue()


HOSTILE = {
    deflated: "is compressed",
    beyond_its_entry: "cannot be read",
    expanded: "larger than the file",
    nested: "larger than the file",
    in_itself: "cannot be read",
}


@pytest.mark.parametrize("make", HOSTILE)
def test_archive_larger_inside_than_outside_is_refused(tmp_path: Path, make: Callable[[], bytes]) -> None:
    """Before, a policy of 1.5 MB took 1.8 GiB."""
    (tmp_path / "a.pt").write_bytes(make())
    with pytest.raises(CheckpointError, match=HOSTILE[make]):
        load(tmp_path / "a.pt")


LIMITED = """
import resource, sys
from pathlib import Path
from esper_overwatch.trainer.checkpoint import load
from esper_overwatch.trainer.checkpoint_files import CheckpointError
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20),) * 2)
for path in map(Path, sys.argv[1:]):
    try:
        load(path)
    except CheckpointError as error:
        assert "memory" not in str(error), error
"""


@pytest.mark.slow
def test_hostile_archives_take_little_memory(tmp_path: Path) -> None:
    paths = [tmp_path / make.__name__ for make in HOSTILE]
    for path, make in zip(paths, HOSTILE, strict=True):
        path.write_bytes(make())
    done = subprocess.run([sys.executable, "-c", LIMITED, *map(str, paths)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
