"""Measure what a gateway costs a run: `python -m benchmarks.gateway`.

A loop of torch training steps emits 1,000 events a second: alone, in turn beside a gateway with a reader and
an asker over TCP, and beside one that gets SIGKILL in the middle of the window. The figures are quotients of
steps per second, so the gateway's own work counts where cores are few. Also: a ping through the gateway in
turn with one over the Unix socket.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

from esper_overwatch import connect
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import make_client

from .report import finish
from .wire import Trainer, update

PAIRS = 12
WINDOW_S = 3.0
PINGS = 200
READER = """
import sys, time
from esper_overwatch import Subscriber, connect
from esper_overwatch.protocol.errors import EsperError
reader = Subscriber(sys.argv[1], streams=("life", "metric"))
asked = 0.0
while True:
    reader.drain()
    reader.wait(0.05)
    if time.monotonic() > asked + 0.5:
        asked = time.monotonic()
        try:
            with connect(sys.argv[1]) as run:
                run.status()
        except EsperError:
            pass
"""


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="esper-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        (home / "run").mkdir(mode=0o700)
        os.environ |= {"XDG_RUNTIME_DIR": str(home / "run"), "XDG_CONFIG_HOME": folder, "ESPER_HOME": folder}
        make_client("reader", server=None, role="viewer")
        with RunFolder.claim("bench", home=home) as run:
            server = Server(run, hello={})
            server.start()
            figures = measure(Trainer(server))
            server.close()
    finish("gateway", figures, {"loop_ratio_killed": (">=", 0.95), "loop_ratio_served": (">=", 0.95)})


def measure(trainer: Trainer) -> dict[str, float]:
    """All figures."""
    address = f"tcp://127.0.0.1:{20_000 + os.getpid() % 20_000}"
    words = [sys.executable, "-m", "esper_overwatch.trainer", "gateway", "bench", "--listen", address]
    rates: dict[str, list[float]] = {"alone": [], "served": [], "killed": []}
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as gateway:
        pings = ping_times(address)
        with subprocess.Popen([sys.executable, "-c", READER, address]) as reader:
            for pair in range(PAIRS):
                names = list(rates)
                for name in names if pair % 2 else reversed(names):
                    rates[name].append(_window(trainer, name, gateway.pid, reader.pid))
            reader.kill()
        gateway.terminate()
    quotients = {
        f"loop_ratio_{name}": statistics.median(
            one / alone for one, alone in zip(rates[name], rates["alone"], strict=True)
        )
        for name in ("served", "killed")
    }
    return {**quotients, **pings, "load1": os.getloadavg()[0]}


def _window(trainer: Trainer, name: str, gateway: int, reader: int) -> float:
    """Steps per second of a window; alone, the others are stopped."""
    others = [psutil.Process(reader), psutil.Process(gateway), *psutil.Process(gateway).children()]
    for one in others:
        one.send_signal(signal.SIGSTOP if name == "alone" else signal.SIGCONT)
    killer = threading.Timer(WINDOW_S / 2, lambda: [one.kill() for one in psutil.Process(gateway).children()])
    if name == "killed":
        killer.start()
    rate = trainer.steps_per_s(WINDOW_S, 1_000, update())
    killer.cancel()
    return rate


def ping_times(address: str) -> dict[str, float]:
    """Medians in milliseconds, in turn."""
    taken: dict[str, list[float]] = {"gateway": [], "local": []}
    while True:
        try:
            through = connect(address, key="reader")
            break
        except EsperError:
            time.sleep(0.2)
    with through, connect("bench") as local:
        for _ in range(PINGS):
            for name, run in (("gateway", through), ("local", local)):
                begin = time.perf_counter()
                run.ping()
                taken[name].append((time.perf_counter() - begin) * 1e3)
                time.sleep(0.011)
    return {f"ping_{name}_median_ms": statistics.median(values) for name, values in taken.items()}


if __name__ == "__main__":
    main()
