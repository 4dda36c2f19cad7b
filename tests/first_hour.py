"""A newcomer's first hour: a clone, `make run`, then every command of README.md and of the tutorial.

`python -m tests.first_hour` is a part of .ci/run. The environment is empty, and pip has no configuration. The
blocks of `sh` and `python` of a page are executed in one shell, in order; a block of Python that begins
with `# file: NAME` becomes that file. Blocks of `text` are not executed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from scripts.install import CPU_INDEX, has_nvidia_driver
from tests.protocol.sshd import ABSENT, Machine

ROOT = Path(__file__).parents[1]
TUTORIAL = ("watch", "arrays", "blueprint", "gpu-box")
OVER_SSH = "gpu-box"
MAX_MB = 1500
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "END-OF-THIS-BLOCK"
FOREIGN = """
from importlib.metadata import distributions
import torch
names = {one.metadata["Name"].lower() for one in distributions()}
print(torch.__version__)
print(*sorted(n for n in names if n.startswith("nvidia") or n == "triton"), torch.version.cuda or "")
"""


def main() -> None:
    """Install as a newcomer does; then walk through the pages with what was installed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what was started is stopped
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        work = Path(folder)
        clone = work / "esper-overwatch"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(work / "home"), "PIP_CONFIG_FILE": os.devnull}
        if authority := os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"):
            environment["PIP_CERT"] = authority  # of this network, whatever packages come through it
        cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
        environment["PIP_CACHE_DIR"] = cache.stdout.strip()
        (work / "home").mkdir()
        try:
            install(clone, {**environment, **choice_of_torch(work)})
            again = [clone / ".venv/bin/python", "-m", "tests.first_hour", "pages"]
            if subprocess.run(again, cwd=clone, env=environment).returncode != 0:
                sys.exit("a command of these pages does not work as it stands there")
        finally:
            stop_all(clone, environment)


def choice_of_torch(work: Path) -> dict[str, str]:
    """What `make run` is given: nothing, but where PyTorch's index or the machine is not a newcomer's."""
    chosen = {"TORCH": "cpu"} if has_nvidia_driver() else {}
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=20).close()
    except OSError as error:
        print(f"{CPU_INDEX} cannot be reached ({error}):", flush=True)
    else:
        return chosen
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith("torch=="))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work / "torch", pinned]
    subprocess.run(pip, check=True)
    (wheel,) = (work / "torch").iterdir()
    if "+cpu" not in wheel.name:
        sys.exit(f"this machine's pip has no CPU build of {pinned} either, but {wheel.name}")
    print(f"make run is given {wheel.name} by TORCH_FROM, as at a site with a mirror", flush=True)
    return {**chosen, "TORCH_FROM": str(wheel.parent)}


def install(clone: Path, environment: dict[str, str]) -> None:
    """The first command; prints what it cost and the first frame."""
    begin = time.monotonic()
    log = clone.with_name("make-run")
    with log.open("wb") as file:
        done = subprocess.run(
            ["make", "run"],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    text = log.read_text(errors="replace")
    if done.returncode != 0:
        sys.exit(f"{text}\nmake run ended with {done.returncode}")
    print(*(line for line in text.splitlines() if line.startswith("== ")), sep="\n")
    frame = text.partition("first finished round\n")[2]
    print(frame)
    if "CRIT" in frame or "esper" not in frame:
        sys.exit("there is no first frame, or that of a healthy run says CRIT")
    minutes = (time.monotonic() - begin) / 60
    said = subprocess.check_output([clone / ".venv/bin/python", "-c", FOREIGN], text=True, env=environment)
    version, _, foreign = said.partition("\n")
    size = int(subprocess.check_output(["du", "-sm", clone / ".venv"]).split()[0])
    print(f"make run: {minutes:.1f} minutes, .venv of {size} MB, torch {version}", flush=True)
    if foreign.strip():
        sys.exit(f"something of CUDA was installed: {foreign.strip()}")
    if size > MAX_MB:
        sys.exit(f".venv is larger than {MAX_MB} MB")


def walk() -> None:
    """In the clone, with its own Python: execute the pages."""
    run_page(ROOT / "README.md", ROOT)
    folder = ROOT.with_name("tutorial")
    folder.mkdir()
    for name in TUTORIAL:
        page = ROOT / f"docs/tutorial/{name}.md"
        if name != OVER_SSH:
            run_page(page, folder)
        elif ABSENT:
            print(f"{page.relative_to(ROOT)} is left out: {ABSENT}", flush=True)
        else:
            with Machine(ROOT.with_name("gpu-box")) as machine:
                run_page(page, folder, {"PATH": f"{as_gpu_box(machine)}:{os.environ['PATH']}"})


def as_gpu_box(machine: Machine) -> Path:
    """A folder with an `ssh` for which the machine has the name that the page gives it."""
    ssh = machine.client / "named/ssh"
    ssh.parent.mkdir()
    words = f'words=("${{@/#me@gpu-box/box}}")\nexec {machine.client}/ssh "${{words[@]/#gpu-box/box}}"'
    ssh.write_text(f"#!/usr/bin/env bash\n{words}\n")
    ssh.chmod(0o700)
    return ssh.parent


def run_page(page: Path, folder: Path, more: dict[str, str] | None = None) -> None:
    """Execute its blocks in one shell. The README says itself how the environment is activated."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    if not blocks:
        sys.exit(f"{page}: no block of sh or python")
    lines = ["set -e"] if folder == ROOT else ["set -e", f". {ROOT}/.venv/bin/activate"]
    lines += [as_shell(language, text) for language, text in blocks]
    begin = time.monotonic()
    log = ROOT.with_name(f"said-by-{page.stem}")
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    with log.open("wb") as file:
        done = subprocess.run(
            ["bash", "-v", "-c", "\n".join(lines)],
            cwd=folder,
            env={**environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        sys.exit(f"{log.read_text(errors='replace')}\n{page.relative_to(ROOT)}: exit code {done.returncode}")
    commands = sum(text.count("\n") for language, text in blocks if language == "sh")
    about = f"{len(blocks)} blocks, {commands} lines of shell, {time.monotonic() - begin:.0f} s"
    print(f"{page.relative_to(ROOT)}: {about}", flush=True)


def as_shell(language: str, text: str) -> str:
    """A block as the shell executes it."""
    if language == "sh":
        return text
    file = re.match(r"# file: (\S+)\n", text)
    return f"{f'cat > {file[1]}' if file else 'python -'} <<'{END}'\n{text}{END}"


def stop_all(clone: Path, environment: dict[str, str]) -> None:
    """End what still runs, here and on the stand-in for another machine."""
    daemon, box = clone / ".venv/bin/esper-daemon", clone.with_name("gpu-box")
    there = {"ESPER_HOME": str(box / "home"), "XDG_RUNTIME_DIR": str(box / "run")}
    for place in [environment, {**environment, **there}] if daemon.exists() else []:
        listed = subprocess.run([daemon, "list", "--json"], env=place, capture_output=True)
        for run in json.loads(listed.stdout or "[]"):
            subprocess.run([daemon, "stop", run["name"]], env=place, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    walk() if sys.argv[1:] == ["pages"] else main()
