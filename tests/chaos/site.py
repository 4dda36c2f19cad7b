"""Where the chaos happens: a home on a disk of its own, and the daemon that is started there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import zmq

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.storage.keys import make_client
from tests.power.disk import build_recorder, compiler, recording
from tests.protocol.raw import Raw
from tests.protocol.sshd import free_ports

from .clients import Recorder, connection_of

NAME = "victim"
DISK_BYTES = 192 * 2**20
PATIENCE_SECONDS = 300.0
TRAINING = (
    "rounds=1000000",
    "envs.count=4",
    "ppo.minibatches=2",
    "episode_epochs=12",
    "task.batches_per_epoch=4",
    "host.channels=4,8",
    "envs.group_size=2",
    "envs.convolution=grouped",
    "envs.threads=1",
    "telemetry.stride=1",
)
"""What two runs that are to be equal have in common; all that would be measured is set."""


class BrokenPromise(AssertionError):
    """What the product promises did not hold."""


def until(
    what: str, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, every: float = 0.01
) -> Any:
    """The first true value of `condition()`.

    Raises:
        BrokenPromise: there was none for a generous time.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise BrokenPromise(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)
    return value


class Site:
    """Folders, environment and disk; `close` ends what was started here and removes it all.

    Attributes:
        missing: what this machine does not permit, and so which faults are not possible, with the reason.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="esper-chaos-"))
        self.disk, self.runtime = self.folder / "disk", self.folder / "rt"
        self.disk.mkdir(mode=0o700)
        self.runtime.mkdir(mode=0o700)
        self.home = self.disk / "home"
        self.clock = self.folder / "clock"
        self.clock.write_text("0")
        self.record = self.folder / "record"
        self.missing: dict[str, str] = {}
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("ESPER_")},
            "ESPER_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # on a full disk Python would keep a half
        }
        os.environ.update(self.environment)
        self._mount()
        make_client("watcher", server=None, role="viewer")
        make_client("steerer", server=None, role="operator")

    def _mount(self) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(self.disk)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or str(error)
            self.missing["disk"] = f"mount is not permitted: {why.strip()}"
        if compiler() is None:
            self.missing["recorder"] = "no C compiler (Debian's package gcc)"
        else:
            self.recorder = build_recorder(self.folder)

    def start(
        self, said: str, *words: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `esper-daemon` with these words; what it says is added to the file `said`."""
        with (self.folder / said).open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "esper_overwatch.trainer", *words],
                env=self.environment | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    def processes(self) -> list[psutil.Process]:
        """Those that live and have this site's home."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("ESPER_HOME") == str(self.home) and process.pid != os.getpid()
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if "disk" not in self.missing:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Victim:
    """The daemon, which is started with the same command whatever became of it before.

    Args:
        site: where.
        own: settings that do not change what is trained.

    Attributes:
        boots: how often it was started.
        is_clock_right: unset while its wall clock is not ours.
        memory: (boot, bytes) resident, whenever it was looked at.
    """

    def __init__(self, site: Site, own: tuple[str, ...] = ("journal.segment_bytes=65536",)) -> None:
        self.site = site
        self.run = site.home / "runs" / NAME
        self.port = free_ports(3)
        self.boots = 0
        self.memory: list[tuple[int, int]] = []
        self.own = own
        self.sync_ms = 0
        """What the disk takes for an fdatasync while it is recorded."""
        self.recorder: Recorder | None = None
        """What `status` is compared with."""
        self.is_clock_right = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    def start(self, how: str = "") -> None:
        """Start it, resuming what there is, and wait until it trains.

        Args:
            how: "clock": its wall clock is ahead by what `Site.clock` says; "recorded": what it does to the
                disk is written to `Site.record`.
        """
        self.spawn(how)
        until("a started daemon trains", lambda: self.status().get("state") == "TRAINING")

    def spawn(self, how: str = "") -> None:
        """Start it, and do not wait."""
        sets = [word for item in (*TRAINING, *self.own) for word in ("--set", item)]
        environment: dict[str, str] = {}
        self.is_clock_right.set()
        if how == "clock":
            self.is_clock_right.clear()
            environment = {"LD_PRELOAD": str(self.site.recorder), "CLOCK_OFFSET": str(self.site.clock)}
        elif how:
            self.site.record.unlink(missing_ok=True)
            environment = recording(self.site.recorder, self.site.home, self.site.record, self.sync_ms)
        words = ("start", NAME, "--or-resume", *sets)
        self._process = self.site.start("daemon.err", *words, environment=environment)
        if self.boots == 0:  # the gateway serves all boots, so nothing waits for it here
            address = f"tcp://127.0.0.1:{self.port}"
            self.gateway = self.site.start("gateway.err", "gateway", NAME, "--listen", address)
        self.boots += 1

    def end_gateway(self) -> int:
        """Its exit code."""
        self.gateway.terminate()
        return self.gateway.wait(PATIENCE_SECONDS)

    def status(self) -> dict[str, Any]:
        """Its answer; empty where it cannot be reached at present.

        Raises:
            BrokenPromise: the daemon has ended.
        """
        if self.process.poll() is not None:
            said = (self.site.folder / "daemon.err").read_text(errors="replace")[-1500:]
            raise BrokenPromise(f"the daemon ended with {self.process.returncode}: {said}")
        boot = str(connection_of(self.run).get("boot"))
        received = self.recorder.newest(boot) if self.recorder else {}
        found = self.ask("qry", "status")
        if found.get("pid") != self.pid:
            return {}
        if found["boot"] == boot and any(found["seq"][name] < n for name, n in received.items()):
            raise BrokenPromise(f"status has {found['seq']}, a reader had received {received} before")
        self.memory.append((self.boots, psutil.Process(self.pid).memory_info().rss))
        return found

    def ask(self, socket: str, method: str, seconds: float = 5.0, **params: Any) -> dict[str, Any]:
        """The result of a request without a deadline (the clocks differ); empty where there is none."""
        with contextlib.suppress(OSError, ValueError, EsperError, zmq.ZMQError), Raw(NAME) as raw:
            one = raw.open(zmq.REQ, socket)
            one.set(zmq.LINGER, 0)
            one.send_json({"jsonrpc": "2.0", "id": os.urandom(6).hex(), "method": method, "params": params})
            if one.poll(int(seconds * 1000)):
                return dict(json.loads(one.recv_multipart()[0]).get("result", {}))
        return {}

    def check_service(self) -> None:
        """It answers, trains on, and neither wire nor disk has a fault that lasts.

        Raises:
            BrokenPromise: it does not.
        """
        before = until("it answers", self.status)["seq"]["metric"]

        def is_well() -> bool:
            now = self.status()
            return bool(now) and now["seq"]["metric"] > before + 1 and now["wire"]["failing"] == {}

        until("it trains on and its wire has recovered", is_well)
        until("the journal is written", lambda: (s := self.status()) and s["journal"]["error"] is None)
        now = until("it answers", self.status)
        if any(now["dropped"].values()) or now["journal"]["lost"]:
            raise BrokenPromise(f"events were dropped: {now['dropped']}, journal {now['journal']['lost']}")

    def kill(self) -> None:
        """kill -9, without a word of warning."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def opened(*own: str) -> Iterator[tuple[Site, Victim]]:
    """A site with a daemon that trains, with settings of its own; nothing is left of it afterwards."""
    site = Site()
    try:
        victim = Victim(site, own) if own else Victim(site)
        victim.start()
        yield site, victim
    finally:
        site.close()
