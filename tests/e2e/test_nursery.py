"""A forked process is as one that begins by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import House
from .nursery import nursery

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere none is forked"),
]
TELLS = """
import os, signal, sys
print(sys.argv, sys.orig_argv, sorted(os.environ.items()), os.getcwd(), sorted(os.listdir("/proc/self/fd")))
print([(number, signal.getsignal(number)) for number in (2, 13, 15, 17)], sys.stdin.read(), __name__)
"""


@pytest.mark.parametrize(
    "code",
    [
        TELLS,
        "import sys; sys.exit(7)",
        "import sys; sys.exit('words')",
        "raise SystemExit",
        "raise RuntimeError('a bug')",
        "import os; os.kill(os.getpid(), 9)",
        "import atexit; atexit.register(print, 'at the end')",
    ],
)
def test_it_has_and_leaves_what_another_does(house: House, code: str) -> None:
    forked, other = house.execute(code), house.run("-c", code)
    assert (forked.returncode, forked.stdout) == (other.returncode, other.stdout)
    assert forked.stderr.splitlines()[-1:] == other.stderr.splitlines()[-1:]


def test_it_is_waited_for_and_ended(house: House) -> None:
    forks = nursery(house.environment)
    assert forks is not None
    with open("/dev/null", "r+b") as quiet:
        process = forks.start(("-c", "import time; time.sleep(600)"), house.environment, quiet, quiet, quiet)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    assert process.poll() is None
    process.terminate()
    assert (process.wait(300), process.poll()) == (-15, -15)
    process.kill()


def test_what_is_loaded_differently_is_not_forked(house: House) -> None:
    house.environment["PYTHONPATH"] = str(house.home)
    assert nursery(house.environment) is None
