"""What a resumed run goes on from: no checkpoint that it has gone back behind, unless asked to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from esper_overwatch.protocol.errors import DISK_EXIT, FolderError
from esper_overwatch.protocol.storage import folders
from esper_overwatch.trainer.checkpoint import Checkpoints
from esper_overwatch.trainer.checkpoint_files import CheckpointError
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.daemon.resume import (
    ResumePoint,
    ResumeRequest,
    load_configuration,
    replaced_configuration,
)
from tests.trainer.journals import started, write_run

CONFIG = Config()


class Boot:
    """A start of the run, unattended, which goes on from the newest checkpoint or from `chosen`."""

    def __init__(self, folder: Path, chosen: str | None = None, keep: int = 5) -> None:
        self.checkpoints = Checkpoints(folder, keep=keep)
        request = ResumeRequest(chosen, skip_damaged=True)
        point = ResumePoint.find(self.checkpoints, CONFIG, 1, request)
        self.name = None if point is None else point.path.name

    def save(self, *rounds: int) -> Path:
        config = msgspec.json.encode(CONFIG).decode()
        return [self.checkpoints.save({"config": config}, round=n, epoch=None).path for n in rounds][-1]


def name(round_: int) -> str:
    return f"round-00000{round_}.pt"


@pytest.mark.parametrize("copied", [False, True], ids=["by name", "from elsewhere"])
def test_damaged_newest_is_not_replaced_by_an_abandoned_one(tmp_path: Path, copied: bool) -> None:
    folder, chosen = tmp_path / "checkpoints", name(2)
    oldest = Boot(folder).save(1, 2, 4, 5).parent / name(1)
    if copied:
        elsewhere = tmp_path / "mine.pt"
        elsewhere.write_bytes((folder / chosen).read_bytes())
        chosen = str(elsewhere)
    newest = Boot(folder, chosen).save(3)
    newest.write_bytes(b"damaged")
    if copied:  # nobody knows whether the others are of its past
        with pytest.raises(CheckpointError, match=r"round-000003\.pt .*others were abandoned"):
            Boot(folder)
        newest.unlink()
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* others were abandoned"):
            Boot(folder)
        assert Boot(folder, name(5)).name == name(5), "it is asked for"
        return
    assert Boot(folder).name == name(2)
    (folder / name(2)).unlink()
    assert Boot(folder).name == oldest.name


def test_abandoned_checkpoints_are_the_first_to_go(tmp_path: Path) -> None:
    Boot(tmp_path / "run", keep=3).save(1, 4, 5)
    again = Boot(tmp_path / "run", name(1), keep=3)
    again.save(2, 3)
    assert [path.name for path in again.checkpoints.all()] == [name(1), name(2), name(3)]


def test_checkpoint_that_is_written_anew_counts_again(tmp_path: Path) -> None:
    Boot(tmp_path / "run").save(1, 2, 3)
    Boot(tmp_path / "run", name(1)).save(2, 3).write_bytes(b"damaged")
    assert Boot(tmp_path / "run").name == name(2)


def test_without_an_index_rounds_tell_what_was_abandoned(tmp_path: Path) -> None:
    Boot(tmp_path / "run").save(1, 2, 4)
    (tmp_path / "run" / "index.json").unlink()  # lost
    Boot(tmp_path / "run", name(2)).save(3).write_bytes(b"damaged")
    assert Boot(tmp_path / "run").name == name(2)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file or directory"), (b"[]", "Expected `object`, got `array`"), (b'{"a', "truncated")],
)
def test_run_without_its_configuration_cannot_go_on(home: Path, content: bytes | None, why: str) -> None:
    folder = write_run(home, "r", [started("b1")])
    folder.release()
    if content is not None:
        (folder.path / "config.json").write_bytes(content)
    with pytest.raises(FolderError, match=f"config.json: .*{why}.*replay r --type") as raised:
        load_configuration("r", None, None, ())
    assert (raised.value.exit_code, str(raised.value).count("config.json")) == (10, 1)


def test_resume_as_before_needs_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sourced = settings.SourcedConfig(CONFIG, {})
    with replaced_configuration(tmp_path, sourced):
        pass
    written = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(folders.os, "fsync", full)
    with replaced_configuration(tmp_path, sourced):
        pass
    other = settings.SourcedConfig(msgspec.structs.replace(CONFIG, rounds=7), {})
    with pytest.raises(FolderError, match="No space left") as raised, replaced_configuration(tmp_path, other):
        pass
    assert raised.value.exit_code == DISK_EXIT, "which systemd tries again"
    assert {path: path.read_bytes() for path in written} == written
