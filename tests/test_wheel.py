"""The wheel takes no name of another project, and works beside those that own such names."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from esper_overwatch.protocol.version import __version__

ROOT = Path(__file__).parents[1]
OWNED = ("trainer", "protocol", "overwatch_tui")
pytestmark = pytest.mark.slow


def pip(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        env={**os.environ, "CC": "/bin/false", "CXX": "/bin/false"},  # no test needs the compiled parts
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def stand_in(folder: Path, name: str) -> Path:
    """A wheel of somebody else's project, whose one module may not be imported by us."""
    file = folder / f"{name}-1-py3-none-any.whl"
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"raise SystemExit('{name} of another project was imported')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git has, so that nothing of this checkout's other files gets into it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "checkout"], check=True)
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "checkout")
    (file,) = folder.glob("esper_overwatch-*.whl")
    return file


def test_its_only_top_level_name_is_ours(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition("/")[0] for name in archive.namelist()}
        info = wheel.name.rsplit("-", 3)[0] + ".dist-info"
        assert names == {"esper_overwatch", info}
        assert archive.read(f"{info}/top_level.txt").split() == [b"esper_overwatch"]


def test_both_programs_run_beside_the_owners_of_these_names(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment; what we require is taken from that of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv/bin"
    others = [stand_in(tmp_path, name) for name in OWNED]
    pip("--python", programs / "python", "install", "--quiet", "--no-deps", "--no-index", wheel, *others)

    def call(*words: str | Path) -> str:
        command = [programs / words[0], *words[1:]]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = Path(call("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (where / "requirements.pth").write_text(str(Path(click.__file__).parents[1]))
    for name in OWNED:
        assert (where / name / "__init__.py").is_file()
    assert f", version {__version__}" in call("esper-daemon", "--version")
    assert f", version {__version__}" in call("esper-tui", "--version")
    published = "from esper_overwatch import publish\nwith publish('mine') as run: run.log(step=1, loss=0.5)"
    call("python", "-c", published)
    assert "mine" in call("esper-daemon", "list", "--all")
    assert "loss" in call("esper-tui", "--once", "mine")
    code = "import esper_overwatch.protocol, esper_overwatch.trainer; print(esper_overwatch.__file__)"
    assert Path(call("python", "-c", code).strip()).is_relative_to(where)
