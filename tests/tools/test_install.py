"""Which torch `make run` asks for. tests/first_hour.py installs it for real."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from scripts import install

PINNED = next(line for line in (install.ROOT / "constraints.txt").read_text().split() if "torch==" in line)


@pytest.fixture(autouse=True)
def new_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing is installed yet and nothing is asked for."""
    monkeypatch.setattr(install, "has_torch", lambda _version: False)
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    for name in ("TORCH", "TORCH_FROM", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def nvidia_smi(folder: Path, exit_code: int) -> str:
    """A PATH on which nvidia-smi is, and sees a device or none."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    program.chmod(0o700)
    return str(folder)


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="an NVIDIA driver is loaded here")
def test_the_build_for_cuda_is_for_machines_with_a_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.has_nvidia_driver()
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path, 9))
    assert not install.has_nvidia_driver(), "the tool is there, and no driver"
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path, 0))
    assert install.has_nvidia_driver()
    assert install.choose_torch() == PINNED, "the ordinary index has it"


def test_a_site_with_a_folder_of_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = f"{PINNED.removeprefix('torch==')}+cpu"
    wheel, info = tmp_path / f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("TORCH_FROM", str(tmp_path))
    requirement = install.choose_torch()
    assert requirement == f"torch @ {wheel.as_uri()}"
    url = requirement.partition(" @ ")[2]
    assert install.archive_bytes(url) == wheel.stat().st_size
    item = {"metadata": {"name": "torch"}, "download_info": {"url": url}}
    assert install.describe([item]).startswith("1 packages, about 0 MB (torch 0, ...)")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TORCH", "rocm", "TORCH=rocm: give cpu or cuda"),
        ("TORCH_FROM", "/nowhere", "TORCH_FROM=/nowhere: neither a folder nor the address of an index"),
        ("TORCH_FROM", ".", f"no {PINNED} for this Python in TORCH_FROM=."),
    ],
)
def test_a_wrong_choice_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        install.choose_torch()
    assert caught.value.code == words


def test_an_environment_of_an_old_python_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.10 False\n")
    python.chmod(0o700)
    install.refuse_old(sys.executable)
    with pytest.raises(SystemExit, match=r"is Python 3\.10; 3\.11 or newer is needed"):
        install.refuse_old(python)
