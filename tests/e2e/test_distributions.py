"""What is published: the sdist, the wheels built from it with and without a compiler, the image."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from esper_overwatch.protocol.version import __version__

ROOT = Path(__file__).parents[2]
OWNED = ("trainer", "protocol", "overwatch_tui")
"""Names of our folders that other projects have."""
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"


def build(python: Path, kind: str, source: Path, to: Path, **environment: str) -> Path:
    """Build `sdist` or `wheel` of a source tree into a folder of its own."""
    to.mkdir()
    command = [str(python), "-c", BUILD.format(kind=kind), str(to)]
    subprocess.run(command, cwd=source, env=os.environ | environment, check=True, capture_output=True)
    (file,) = to.iterdir()
    return file


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has setuptools."""
    folder = tmp_path_factory.mktemp("builder")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "setuptools>=77"], check=True)
    return python


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree without what git ignores, links as links."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    there = b"\0".join(
        name for name in names.split(b"\0") if name and os.path.lexists(ROOT / os.fsdecode(name))
    )
    packed = subprocess.run(
        ["tar", "c", "--null", "-T", "-"], cwd=ROOT, input=there, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=packed, check=True)
    return folder


@pytest.fixture(scope="module")
def sdist(builder: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(builder, "sdist", checkout, tmp_path_factory.mktemp("dist") / "sdist")


def unpacked(sdist: Path, to: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(to, filter="data")
    return to / f"esper_overwatch-{__version__}"


@pytest.fixture(scope="module")
def wheel(builder: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist where no compiler is, as by `CC=/bin/false CXX=/bin/false pip install .`."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(builder, "wheel", unpacked(sdist, folder), folder / "pure", **NO_COMPILER)


def contents(wheel: Path) -> dict[str, int]:
    """Checksums of what is the same in each build; the record and compiled modules are not."""
    with zipfile.ZipFile(wheel) as archive:
        files = [
            file for file in archive.infolist() if not file.filename.endswith((".so", "/RECORD", "/WHEEL"))
        ]
        assert len({file.filename for file in files}) == len(files)
        return {file.filename: file.CRC for file in files}


@pytest.mark.slow
def test_wheels_of_the_sdist_and_the_checkout_are_equal(
    builder: Path, checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    ours = contents(wheel)
    assert ours == contents(build(builder, "wheel", checkout, tmp_path / "direct", **NO_COMPILER))
    info = f"esper_overwatch-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in ours} == {"esper_overwatch", info}
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{info}/top_level.txt").split() == [b"esper_overwatch"]
        programs = archive.read(f"{info}/entry_points.txt").decode()
    assert all(f"{name} = esper_overwatch." in programs for name in ("esper-daemon", "esper-tui"))
    tracked = {p.relative_to(ROOT / "trainer") for p in (ROOT / "trainer").rglob("*.py")}
    assert {f"esper_overwatch/trainer/{path}" for path in tracked} <= set(ours)


@pytest.mark.slow
def test_sdist_has_what_a_packager_needs(sdist: Path, tmp_path: Path) -> None:
    source = unpacked(sdist, tmp_path)
    files = (
        "CHANGELOG.md",
        "constraints.txt",
        "Makefile",
        "Containerfile",
        "scripts/run",
        "tests/conftest.py",
    )
    headers = {path.name for path in (ROOT / "trainer/compute").glob("*.h")}
    assert all((source / file).exists() for file in (*files, "docs/architecture.md", "examples"))
    assert {path.name for path in (source / "esper_overwatch/trainer/compute").glob("*.h")} == headers
    assert not (source / "trainer").exists(), "the packages are in it once"


@pytest.mark.slow
def test_programs_of_a_wheel_run_beside_owners_of_our_names(wheel: Path, tmp_path: Path) -> None:
    """Without compiled modules, and beside packages of others that we may not import."""
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(installed)
    for name in OWNED:
        (installed / name).mkdir()
        (installed / name / "__init__.py").write_text(f"raise SystemExit('{name} of another project')\n")
    environment = os.environ | {"PYTHONPATH": str(installed), "ESPER_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import esper_overwatch as e; print(e.__file__)").startswith(str(installed))
    daemon, terminal = "esper_overwatch.trainer", "esper_overwatch.overwatch_tui"
    small = (
        "envs.count=2",
        "ppo.minibatches=1",
        "episode_epochs=3",
        "task.batches_per_epoch=2",
        "device=cpu",
    )
    run(
        "-m",
        daemon,
        "start",
        "pure",
        "--rounds",
        "1",
        *(word for one in (*small, "device=cpu") for word in ("--set", one)),
    )
    assert "r1" in run("-m", terminal, "--once", "pure")
    run("-c", "from esper_overwatch import publish\nwith publish('mine') as run: run.log(step=1, loss=0.5)")
    assert "mine" in run("-m", daemon, "list", "--all")
    assert "loss" in run("-m", terminal, "--once", "mine")


def test_containerfile_copies_and_installs_what_exists() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for copied in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (ROOT / copied).exists()
    for file in re.findall(r"/src/([\w.]+)", text):
        assert (ROOT / file).exists()
    (named,) = re.findall(r'"/src\[([\w,]+)\]"', text)
    assert set(named.split(",")) <= set(extras["optional-dependencies"])
    (program,) = re.findall(r'^ENTRYPOINT \["([\w-]+)"\]', text, re.MULTILINE)
    assert program in extras["scripts"]
