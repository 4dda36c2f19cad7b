"""A checkpoint is whole or not there; damage is named; the newest few and the best are kept."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_overwatch.trainer import checkpoint as module
from esper_overwatch.trainer import checkpoint_files
from esper_overwatch.trainer.checkpoint import Checkpoints, load, to_archive
from esper_overwatch.trainer.checkpoint_files import (
    CheckpointError,
    best_checkpoint,
    find_checkpoint,
    list_checkpoints,
)


def state(value: float) -> dict[str, Any]:
    return {"round": 1, "weights": {"w": torch.full((3,), float(value))}, "history": [1, 2.5, None, "x"]}


def test_round_trip_and_retention(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for number in range(1, 6):
        store.save(state(number), round=number, epoch=None, best=number == 2)
    assert [p.name for p in store.all()] == ["round-000004.pt", "round-000005.pt"]
    path, newest = store.latest() or (None, {})
    assert path == tmp_path / "round-000005.pt"
    assert torch.equal(newest["weights"]["w"], torch.full((3,), 5.0))
    assert newest["history"] == [1, 2.5, None, "x"]
    assert torch.equal(load(tmp_path / "best.pt")["weights"]["w"], torch.full((3,), 2.0))


def test_nobody_else_reads_a_checkpoint(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Checkpoints(tmp_path / "made", keep=2).save(state(1), round=1, epoch=None, best=True)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "made", *(tmp_path / "made").iterdir())} == {
        0
    }


def test_tagged_checkpoint_stays_until_it_is_deleted(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for number, tag in enumerate(["", "before", "", "", "", ""], 1):
        store.save(state(number), round=number, epoch=None, tag=tag, accuracy=number / 10, best=number == 3)
    names = ["round-000002-before.pt", "round-000005.pt", "round-000006.pt"]
    files = list_checkpoints(tmp_path)
    assert [file.path.name for file in files] == names
    assert [(file.round, file.tag, file.accuracy) for file in files] == [
        (2, "before", 0.2),
        (5, "", 0.5),
        (6, "", 0.6),
    ]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert (best.accuracy, best.bytes) == (0.3, (tmp_path / "best.pt").stat().st_size)
    assert find_checkpoint(tmp_path, "before").name == names[0]
    assert find_checkpoint(tmp_path, "best").name == "best.pt"
    assert find_checkpoint(tmp_path, "round-000005.pt").name == names[1]
    assert find_checkpoint(tmp_path, str(tmp_path / names[2])).name == names[2]
    with pytest.raises(CheckpointError, match=r"no checkpoint nope in .*there are before, round-000005.pt"):
        find_checkpoint(tmp_path, "nope")


def test_files_that_go_while_they_are_listed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoints(tmp_path, keep=2).save(state(2), round=2, epoch=None, best=True)
    gone = tmp_path / "round-000001.pt"
    gone.symlink_to("nowhere")  # it is in its folder, but no file
    files = list_checkpoints(tmp_path)
    assert [file.round for file in files] == [2]
    stale = replace(files[0], path=gone, round=1)
    monkeypatch.setattr(checkpoint_files, "list_checkpoints", lambda _: [stale, *files])
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.round == 2


def test_newest_is_the_last_written_after_going_back(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 3, 4):
        store.save(state(number), round=number, epoch=None, tag="keep" if number == 1 else "")
    for number in (2, 3):  # resumed from round 1
        store.save(state(10 * number), round=number, epoch=None)
    path, newest = store.latest() or (None, {})
    assert path == tmp_path / "round-000003.pt"
    assert torch.equal(newest["weights"]["w"], torch.full((3,), 30.0))
    assert [p.name for p in store.all()] == ["round-000001-keep.pt", "round-000002.pt", "round-000003.pt"]


def test_without_an_index_the_rounds_give_the_order(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=5)
    for number in (1, 2, 3):
        store.save(state(number), round=number, epoch=None)
    (tmp_path / "index.json").write_bytes(b"{")
    assert [p.name for p in store.all()] == [f"round-00000{n}.pt" for n in (1, 2, 3)]
    store.save(state(4), round=2, epoch=None, tag="again")
    assert [file.accuracy for file in list_checkpoints(tmp_path)] == [None] * 4
    assert store.all()[-1].name == "round-000002-again.pt"


def test_mid_episode_checkpoint_sorts_before_its_round_end(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=10)
    for round, epoch, tag in [(2, None, ""), (1, None, ""), (2, 7, "mine"), (2, 12, "")]:
        store.save(state(0), round=round, epoch=epoch, tag=tag)
    (tmp_path / "index.json").unlink()  # lost
    assert [p.stem for p in store.all()] == [
        "round-000001",
        "round-000002-epoch-00007-mine",
        "round-000002-epoch-00012",
        "round-000002",
    ]


def test_no_flipped_byte_is_read_as_whole(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=5)
    path = store.save(state(2), round=1, epoch=None).path
    assert zipfile.ZipFile(path).comment.startswith(b"sha256:")
    raw = path.read_bytes()
    names = raw.rfind(b"PK\x01\x02")  # in the directory at the end, tensors' checksums find nothing
    for at in [*range(0, names, 31), *range(names - 100, len(raw) - 73)]:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
        with pytest.raises(CheckpointError):
            load(path)


def test_archive_without_a_checksum_is_refused_in_a_line(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, keep=5).save(state(2), round=1, epoch=None).path
    raw = path.read_bytes()
    path.write_bytes(raw[: -len(zipfile.ZipFile(path).comment) - 2] + b"\0\0")
    with pytest.raises(CheckpointError, match=r"fails its checksum.* made by 0\.1\.0"):
        load(path)


def test_what_a_killed_daemon_left_is_removed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=5)
    left = tmp_path / ".round-000001.pt.4711"
    left.write_bytes(b"half a checkpoint")
    store.save(state(1), round=1, epoch=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.json", "round-000001.pt"]


@pytest.mark.parametrize("damage", ["cut", "flip", "junk", "empty"])
def test_damage_is_named_and_the_one_before_offered(tmp_path: Path, damage: str) -> None:
    store = Checkpoints(tmp_path, keep=5)
    store.save(state(1), round=1, epoch=None)
    path = store.save(state(2), round=2, epoch=None).path
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) * 2 // 3]
    elif damage == "flip":
        at = raw.find(torch.full((3,), 2.0).numpy().tobytes())
        assert at > 0
        raw[at] ^= 0xFF
    else:
        raw = bytearray(b"" if damage == "empty" else b"junk" * 100)
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        store.latest()
    assert "round-000002.pt" in str(caught.value)
    assert "round-000001.pt" in str(caught.value)


def test_a_full_disk_leaves_the_old_one_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Checkpoints(tmp_path, keep=5)
    store.save(state(1), round=1, epoch=None)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(state(2), round=2, epoch=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.json", "round-000001.pt"]
    assert store.latest() is not None


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (exec, ("raise SystemExit('ran')",))

    (tmp_path / "round-000001.pt").write_bytes(to_archive({"format": 1, "x": Evil()}).getvalue())
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoints(tmp_path, keep=1).latest()


def test_other_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "round-000001.pt").write_bytes(to_archive({"format": 99}).getvalue())
    with pytest.raises(CheckpointError, match="format 99"):
        load(tmp_path / "round-000001.pt")


@pytest.mark.parametrize("num_damaged", [1, 2, 3])
def test_unattended_resume_takes_newest_readable_one(tmp_path: Path, num_damaged: int) -> None:
    store = Checkpoints(tmp_path, keep=5)
    paths = [store.save(state(n), round=n, epoch=None).path for n in (1, 2, 3)]
    for path in paths[-num_damaged:]:
        path.write_bytes(path.read_bytes()[:100])
    told: list[str] = []
    if num_damaged == len(paths):
        with pytest.raises(CheckpointError, match=r"round-000001\.pt.*there is no other"):
            store.latest(on_damaged=lambda error: told.append(str(error)))
        return
    found = store.latest(on_damaged=lambda error: told.append(str(error)))
    assert found is not None
    assert found[0] == paths[-num_damaged - 1]
    assert [paths[-1 - i].name in words for i, words in enumerate(told)] == [True] * num_damaged


class Killed(BaseException):
    """The process ends here: nothing that it does from now on reaches the disk."""


class FaultyDisk:
    """Fails at one of the steps by which a save changes the disk.

    Args:
        step: which one, from 0.
        fault: what it fails with; after `Killed` no step succeeds.
    """

    def __init__(self, patch: pytest.MonkeyPatch, step: int, fault: BaseException) -> None:
        self._left, self._fault = step, fault
        for name in ("open", "fsync", "replace", "link", "unlink"):
            patch.setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left == -1 or (self._left < 0 and isinstance(self._fault, Killed)):
            raise self._fault
        return real(*args, **kwargs)


def went_back(folder: Path) -> Checkpoints:
    """Rounds 1 to 3, then round 2 once more, after the run was resumed from round 1."""
    store = Checkpoints(folder, keep=3)
    for number in (1, 2, 3):
        store.save({"round": number, "abandoned": number > 1}, round=number, epoch=None, best=number == 3)
    store.save({"round": 2, "abandoned": False}, round=2, epoch=None)
    return store


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), Killed()], ids=["full", "killed"])
@pytest.mark.parametrize("saved", [2, 3, 4], ids=["over the newest", "over an abandoned one", "new"])
def test_no_fault_amid_a_save_revives_an_abandoned_checkpoint(
    tmp_path: Path, saved: int, fault: BaseException
) -> None:
    for step in range(100):
        store = went_back(tmp_path / str(step))
        going_on = {"round": saved, "abandoned": False}
        try:
            with pytest.MonkeyPatch.context() as patch:
                FaultyDisk(patch, step, fault)
                store.save(going_on, round=saved, epoch=None, best=True)
        except type(fault):
            kept = [load(path) for path in store.all()]
            assert {each["round"] for each in kept if not each["abandoned"]} >= {1, 2}, f"step {step}"
        else:
            break
        _, newest = store.latest() or (None, {})
        assert not newest["abandoned"], f"step {step}"
        assert newest["round"] in (2, saved)
        assert load(store.folder / "best.pt")["round"] in (3, saved)
        store.save(going_on, round=saved, epoch=None)
        _, newest = store.latest() or (None, {})
        assert (newest["round"], newest["abandoned"]) == (saved, False), f"step {step}"
    assert 10 < step < 99
