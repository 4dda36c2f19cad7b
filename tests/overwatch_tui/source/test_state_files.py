"""The file of pinned charts."""

from __future__ import annotations

from pathlib import Path

from esper_overwatch.overwatch_tui.source.state_files import PinFile


def test_pins_are_kept_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "esper" / "tui-charts"
    PinFile(path).write(["accuracy/7", "ppo.entropy"])
    assert PinFile(path).names(6) == ["accuracy/7", "ppo.entropy"]
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["tui-charts"]


def test_a_damaged_file_gives_what_is_usable(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    assert PinFile(path).names(6) == []
    path.write_bytes(b"\xff\xfe\nspeed\n\x1b[2Jx\n" + b"y" * 10_000 + b"\nspeed\ncpu\n")
    names = PinFile(path).names(6)
    assert names[-2:] == ["speed", "cpu"]
    assert not any("\x1b" in name or len(name) > 200 for name in names)
    assert len(PinFile(path).names(1)) == 1


def test_a_disk_that_refuses_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pins = PinFile(tmp_path / "file" / "below")
    pins.write(["speed"])
    assert pins.names(6) == []
