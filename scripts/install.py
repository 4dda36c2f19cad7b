"""Makes .venv and installs this checkout into it, with the build of torch that fits the machine.

`scripts/install.py EXTRA,EXTRA...` is what `make run` and `make test` call. Two variables steer it:

TORCH=cpu|cuda    The build; without it cuda where an NVIDIA driver is loaded, else cpu.
TORCH_FROM=WHERE  A folder with torch's wheel or the address of an index: for a site with a mirror.

The CPU build comes from PyTorch's own index. Where that cannot be reached the ordinary index is asked, whose
torch for Linux is the CUDA build: gigabytes, and the output says so. The rest comes from where pip looks.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv/bin/python"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = ("-m", "pip", "--disable-pip-version-check")
MB = 1_000_000


def main(extras: str) -> None:
    """Choose torch, say what will be fetched, install it."""
    os.chdir(ROOT)
    if not PYTHON.exists():
        print(f"== making .venv with {sys.executable} {sys.version.split()[0]}", flush=True)
        venv.create(".venv", with_pip=True, symlinks=True)
    refuse_old(PYTHON)
    this = ["-e", f".[{extras}]"]
    torch = choose_torch()
    print("== asking what there is to fetch", flush=True)
    plan = dry_run(["-c", "constraints.txt", torch, *this])
    if plan is None:
        sys.exit("pip cannot resolve what is needed; see above")
    wanted = [item for item in plan if not item["download_info"].get("dir_info")]
    if wanted:
        print(f"== fetching {describe(wanted)}", flush=True)
    # What is never imported is not compiled: 250 MB less in .venv.
    done = subprocess.run([PYTHON, *PIP, "install", "--no-compile", "--no-deps", *map(pin, wanted), *this])
    sys.exit(done.returncode)


def refuse_old(python: str | Path) -> None:
    """One line in place of pip's complaints about packages that this interpreter cannot have."""
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.version_info >= (3, 11))"
    version, new = subprocess.check_output([python, "-c", code], text=True).split()
    if new != "True":
        sys.exit(
            f"{python} is Python {version}; 3.11 or newer is needed: make clean; make run PYTHON=python3.11"
        )


def choose_torch() -> str:
    """The requirement that gives pip the right build."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith("torch=="))
    if has_torch(pinned.removeprefix("torch==")):
        return pinned
    if place := os.environ.get("TORCH_FROM"):
        print(f"== torch comes from {place}, as TORCH_FROM says", flush=True)
        return torch_from(pinned, place) or sys.exit(f"no {pinned} for this Python in TORCH_FROM={place}")
    build = os.environ.get("TORCH") or ("cuda" if has_nvidia_driver() else "cpu")
    if build not in ("cpu", "cuda"):
        sys.exit(f"TORCH={build}: give cpu or cuda")
    if build == "cuda" or sys.platform != "linux":
        print(f"== torch for {build}, from the ordinary index", flush=True)
        return pinned
    print(f"== torch for the CPU, from {CPU_INDEX}", flush=True)
    if torch := torch_from(f"{pinned}+cpu", CPU_INDEX):
        return torch
    print(
        "== it cannot be reached, or has none for this Python; the ordinary one has CUDA's: gigabytes.\n"
        "   With a mirror at hand: make clean; make run TORCH_FROM=FOLDER-OR-INDEX",
        flush=True,
    )
    return pinned


def has_torch(version: str) -> bool:
    """Whether a build of this version is installed already."""
    code = "from importlib.metadata import version; print(version('torch'))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    return done.stdout.strip().partition("+")[0] == version


def has_nvidia_driver() -> bool:
    """By the loaded module, or by a tool that sees a device (WSL has no module)."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        return False


def torch_from(requirement: str, place: str) -> str | None:
    """Its archive there, as a requirement; None where there is none."""
    if Path(place).is_dir():
        where = ["--no-index", "--find-links", place]
    elif "://" in place:
        where = ["--index-url", place, "--retries", "1", "--timeout", "20"]
    else:
        sys.exit(f"TORCH_FROM={place}: neither a folder nor the address of an index")
    found = dry_run(["--no-deps", "--ignore-installed", *where, requirement])
    return f"torch @ {found[0]['download_info']['url']}" if found else None


def dry_run(arguments: list[str]) -> list[dict[str, Any]] | None:
    """What pip would install; None where it cannot, and says why itself."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = ["--quiet", "--dry-run", "--report", str(report)]
        if subprocess.run([PYTHON, *PIP, "install", *options, *arguments]).returncode != 0:
            return None
        items: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return items


def pin(item: dict[str, Any]) -> str:
    """Exactly what the plan has found."""
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    return f"{name} @ {item['download_info']['url']}" if item["is_direct"] else f"{name}=={version}"


def describe(items: list[dict[str, Any]]) -> str:
    """Packages and MB, and the largest by name."""
    urls = [item["download_info"]["url"] for item in items]
    with ThreadPoolExecutor(16) as pool:
        sizes = dict(
            zip((item["metadata"]["name"] for item in items), pool.map(archive_bytes, urls), strict=True)
        )
    unknown = sum(size is None for size in sizes.values())
    largest = sorted(((size or 0, name) for name, size in sizes.items()), reverse=True)[:3]
    text = f"{len(items)} packages, about {sum(size or 0 for size in sizes.values()) / MB:.0f} MB"
    if unknown:
        text += f" and {unknown} of unknown size"
    names = ", ".join(f"{name} {size / MB:.0f}" for size, name in largest if size)
    return f"{text} ({names}, ...); less where pip has kept some" if names else text


def archive_bytes(url: str) -> int | None:
    """Its size, where the place says it."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


if __name__ == "__main__":
    main(sys.argv[1])
