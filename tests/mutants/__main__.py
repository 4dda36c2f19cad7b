"""Mutants: does a test, or the chaos, see an error that is put into the code on purpose?

    python -m tests.mutants [NAME...] [--killers PATH...]

Each change of `table.MUTANTS` is made in a copy of the tree, and its killers are run there: default tests up
to the first that fails, or three minutes of chaos. A row for each mutant says who has killed it, as
docs/lab/mutants.md has them; the last line is JSON. Exit code 0 only if none has survived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .table import CHAOS, MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
CHAOS_MINUTES = 3.0
MAX_SECONDS = 900.0
_LEFT_OUT = (".git", ".venv", "__pycache__", "site", "dist", "build", ".*_cache")


def copied_tree(folder: Path) -> Path:
    """A copy of the tree, with what was built in it."""
    copy = folder / "tree"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return copy


def killer_of(copy: Path, mutant: Mutant) -> str | None:
    """What sees the mutant; None where it survives."""
    path = copy / mutant.file
    before, changed = path.read_text(), mutant.applied(copy)
    try:
        _replace(path, changed)
        for killer in mutant.killers:
            found = _chaos(copy) if killer == CHAOS else _failing_test(copy, killer)
            if found is not None:
                return found
    finally:
        _replace(path, before)
    return None


def _replace(path: Path, text: str) -> None:
    """With a time of its own: what was compiled before has the old one."""
    path.write_text(text)
    now = time.time() + secrets.randbelow(10**6)
    os.utime(path, (now, now))


def _failing_test(copy: Path, path: str) -> str | None:
    code, said = _run(copy, "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", path)
    if code == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return failed[1] if failed else f"{path}: {said[-200:]!r}"


def _chaos(copy: Path) -> str | None:
    code, said = _run(copy, "tests.chaos", "--minutes", str(CHAOS_MINUTES))
    if code == 0:
        return None
    try:
        result = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        return f"chaos: {said[-200:]!r}"
    return f"chaos, seed {result['seed']}: {result['error']}"


def _run(copy: Path, *words: str) -> tuple[int, str]:
    """Exit code and output; what a mutant keeps from ending is ended."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=copy,
            env=environment,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            code = 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main() -> int:
    """Parse the command line, run, print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants (default: all)")
    parser.add_argument(
        "--killers", nargs="+", help=f"in place of each one's own: paths of tests, or {CHAOS}"
    )
    given = parser.parse_args()
    wanted = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    if unknown := set(given.names) - {mutant.name for mutant in wanted}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    killed: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory(prefix="esper-mutants-") as folder:
        copy = copied_tree(Path(folder))
        for mutant in wanted:
            if given.killers:
                mutant = Mutant(mutant.name, mutant.file, mutant.old, mutant.new, tuple(given.killers))
            found = killed[mutant.name] = killer_of(copy, mutant)
            print(
                f"| `{mutant.name}` | `{mutant.file}` | {f'`{found}`' if found else 'SURVIVED'} |", flush=True
            )
    survived = [name for name, killer in killed.items() if killer is None]
    print(json.dumps({"name": "mutants", "killed": len(killed) - len(survived), "survived": survived}))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
