"""Whether this machine can carry a run: folders, sockets, clock, processor, torch, extras.

Each check looks at the real thing: it makes a file, binds a socket, multiplies on each device.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import zmq
from msgspec import Struct

from protocol.errors import FolderError
from protocol.folders import SOCKET_PATH_LIMIT, esper_home, make_private, socket_folder
from protocol.keys import AllowList, KeysUnusable, config_folder, read_secret
from protocol.listener import Listener

Status = Literal["ok", "warn", "FAIL"]
GIB = 1 << 30
DISK_FAIL, DISK_WARN = GIB // 16, 2 * GIB
MEMORY_WARN = GIB
CLOCK_SKEW_S = 5.0
OPEN_FILES_WARN = 256
RELEASED = 1_735_689_600
"""2025-01-01: a clock before it is wrong."""
EXTRAS = {
    "duckdb": ("export", "`esper-daemon query`"),
    "pyarrow": ("export", "`esper-daemon query`"),
    "pynvml": (None, "the GPU's load and temperature"),
}
"""Module: the extra that brings it (None = the package nvidia-ml-py), what needs it."""


class Check(Struct, frozen=True):
    """One line of the doctor's."""

    status: Status
    what: str
    finding: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:<4} {self.what:<9} {self.finding}" + (
            f" – {self.advice}" if self.advice else ""
        )


def examine() -> list[Check]:
    """Every check, in the order in which a start would meet them."""
    parts: list[Callable[[], Iterator[Check]]] = [
        _python, _home, _runtime, _clock, _processor, _memory, _open_files, _zeromq, _remote, _torch, _extras,
    ]  # fmt: skip
    return [check for part in parts for check in part()]


def _python() -> Iterator[Check]:
    yield Check("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.release()}")


def _home() -> Iterator[Check]:
    home = esper_home()
    existed = home.exists()
    try:
        make_private(home, advice="set ESPER_HOME to a folder of yours", readable=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            skew = Path(file.name).stat().st_mtime - time.time()
    except FolderError as error:
        yield Check("FAIL", "home", str(error))
        return
    except OSError as error:
        yield Check("FAIL", "home", f"{home} cannot be written: {error.strerror}", "set ESPER_HOME elsewhere")
        return
    mode = home.stat().st_mode & 0o7777
    yield Check("ok", "home", f"{home}, mode {mode:04o}" + ("" if existed else ", made now"))
    if abs(skew) > CLOCK_SKEW_S:
        yield Check(
            "warn", "home", f"its disk's clock is {skew:+.0f} s off this one", "keep runs on a local disk"
        )
    yield _disk(home)


def _disk(home: Path) -> Check:
    free = shutil.disk_usage(home).free
    text = f"{free / GIB:.1f} GiB free for runs"
    if free < DISK_FAIL:
        return Check("FAIL", "disk", text, "free some, or set ESPER_HOME to another disk")
    if free < DISK_WARN:
        return Check("warn", "disk", text, "journals and checkpoints may fill it")
    return Check("ok", "disk", text)


def _runtime() -> Iterator[Check]:
    """A socket is really bound in a folder like a run's, which is removed again."""
    try:
        folder = socket_folder(secrets.token_hex(4))
    except FolderError as error:
        yield Check("FAIL", "sockets", str(error))
        return
    path = folder / "qry"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError as error:
        yield Check(
            "FAIL",
            "sockets",
            f"{folder.parent}: {error.strerror}",
            "set XDG_RUNTIME_DIR to a folder on a local disk",
        )
    else:
        length = len(os.fsencode(path))
        yield Check("ok", "sockets", f"{folder.parent}, paths of {length} of {SOCKET_PATH_LIMIT} bytes")
    finally:
        path.unlink(missing_ok=True)
        folder.rmdir()


def _clock() -> Iterator[Check]:
    now = time.time()
    journals = esper_home().glob("runs/*/events.jsonl")
    ahead = max((path.stat().st_mtime - now for path in journals), default=0.0)
    if now < RELEASED:
        yield Check("FAIL", "clock", f"it says {time.ctime(now)}", "set the clock")
    elif ahead > CLOCK_SKEW_S:
        yield Check(
            "warn", "clock", f"a journal was written {ahead:.0f} s in the future", "look at the clock (NTP)"
        )
    else:
        yield Check("ok", "clock", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def _processor() -> Iterator[Check]:
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load, share = os.getloadavg()[0], _cpu_share()
    text = f"{seen} cores, load {load:.1f}"
    if share is not None and share < seen:
        advice = f"--set envs.threads={max(1, int(share))}"
        yield Check("warn", "cores", f"{text}; this container may use {share:.1f} of them", advice)
    elif load > 2 * seen:
        yield Check("warn", "cores", text, "others are busy here; epochs will be slow")
    else:
        yield Check("ok", "cores", text)


def _cpu_share() -> float | None:
    """Cores that the control group grants (cgroup v2, `cpu.max`); None where it sets no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Iterator[Check]:
    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available"
    if memory.available < MEMORY_WARN:
        yield Check("warn", "memory", text, "a run needs about 1 GiB")
    else:
        yield Check("ok", "memory", text)


def _open_files() -> Iterator[Check]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES_WARN:
        yield Check(
            "warn", "files", f"{soft} open files allowed", "ulimit -n 1024, else clients are turned away"
        )
    else:
        yield Check("ok", "files", f"{soft} open files allowed")


def _zeromq() -> Iterator[Check]:
    text = f"pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}"
    if not zmq.has("ipc"):
        yield Check("FAIL", "zeromq", f"{text} without ipc", "reinstall pyzmq from its wheel")
    else:
        yield Check("ok", "zeromq", text)


def _remote() -> Iterator[Check]:
    """What reaching other machines, and being reached, would need; most runs need neither."""
    if shutil.which("ssh") is None:
        yield Check("warn", "ssh", "no ssh here, so no --ssh to other machines", "install OpenSSH's client")
    else:
        yield Check("ok", "ssh", "--ssh can be used")
    if not config_folder().exists():
        yield Check("ok", "keys", "none, so no daemon can listen on TCP; --ssh needs none")
        return
    files = [config_folder() / "server.key", *sorted((config_folder() / "keys").glob("*.key"))]
    for path in (path for path in files if path.exists() or path.is_symlink()):
        try:
            read_secret(path)
        except KeysUnusable as error:
            yield Check("FAIL", "keys", str(error))
    allowed = AllowList()
    for problem in allowed.problems:
        yield Check("warn", "keys", problem)
    names = ", ".join(f"{one.name} ({one.role})" for one in allowed.clients.values())
    yield Check("ok", "keys", f"authorized in {allowed.folder}: {names or 'nobody'}")
    yield from _listen()


def _listen() -> Iterator[Check]:
    """Only where the environment asks for it: a configuration file is not known here."""
    address = os.environ.get("ESPER_WIRE_LISTEN")
    if not address:
        return
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        Listener(address).open(context)
    except KeysUnusable as error:
        yield Check("FAIL", "listen", str(error), "another port, or esper-daemon keys new NAME --role ROLE")
    else:
        yield Check("ok", "listen", f"{address} and the next two ports can be bound")
    finally:
        context.destroy(linger=0)


def _torch() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check("FAIL", "torch", str(error), "pip install 'esper-overwatch[trainer]'")
        return
    yield Check("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads by default")
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    if torch.version.cuda and not cuda:
        yield Check("warn", "device", "torch is built for CUDA and sees no device", "look at nvidia-smi")
    for name in ("cpu", *(f"cuda:{index}" for index in cuda)):
        yield _device(name)


def _device(name: str) -> Check:
    import torch

    try:
        ones = torch.ones(8, 8, device=name)
        right = (ones @ ones).sum().item() == 512
        text = name
        if name != "cpu":
            free, total = torch.cuda.mem_get_info(name)
            text = (
                f"{name} {torch.cuda.get_device_name(name)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
            )
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        return Check("FAIL", "device", f"{name}: {first_line}", "--device cpu, or look at nvidia-smi")
    if not right:
        return Check("FAIL", "device", f"{name} multiplies wrongly", "do not train on it")
    return Check("ok", "device", text)


def _extras() -> Iterator[Check]:
    for module, (extra, purpose) in EXTRAS.items():
        if module == "pynvml" and not Path("/dev/nvidiactl").exists():
            continue
        if importlib.util.find_spec(module) is not None:
            yield Check("ok", "extra", f"{module} is there, for {purpose}")
            continue
        install = f"'esper-overwatch[{extra}]'" if extra else "nvidia-ml-py"
        yield Check(
            "warn",
            "extra",
            f"{module} is not there, for {purpose}",
            f"{sys.executable} -m pip install {install}",
        )
