"""Checks that this machine can carry a run: folders, sockets, clock, processor, torch, extras.

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
from contextlib import suppress
from pathlib import Path
from typing import Literal

import zmq
from msgspec import Struct

from esper_overwatch.protocol.errors import FolderError, KeysUnusable, first_line
from esper_overwatch.protocol.extras import install_command
from esper_overwatch.protocol.machine.cgroup import count_cores, cpu_quota, memory
from esper_overwatch.protocol.storage.folders import (
    EVENTS_FILE,
    MAX_SOCKET_PATH_BYTES,
    config_folder,
    esper_home,
    make_private,
    socket_folder,
)
from esper_overwatch.protocol.storage.keys import AllowList, read_secret

Status = Literal["ok", "warn", "FAIL"]
GIB = 1 << 30
DISK_FAIL_BYTES, DISK_WARN_BYTES = GIB // 16, 2 * GIB
MEMORY_WARN_BYTES = GIB
MAX_CLOCK_SKEW_SECONDS = 5.0
MIN_OPEN_FILES = 256
MIN_CLOCK_SECONDS = 1_735_689_600
"""2025-01-01: a clock before it is wrong."""
EXTRAS = {
    "duckdb": ("export", "`esper-daemon query`"),
    "pyarrow": ("export", "`esper-daemon query`"),
    "pynvml": (None, "the GPU's load and temperature"),
}
"""Module: the extra that brings it (None = the package nvidia-ml-py), what needs it."""


class MachineCheck(Struct, frozen=True):
    """One line of the doctor's."""

    status: Status
    what: str
    finding: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:<4} {self.what:<9} {self.finding}" + (
            f" – {self.advice}" if self.advice else ""
        )


def examine() -> list[MachineCheck]:
    """Every check, in the order in which a start would meet them."""
    parts: list[Callable[[], Iterator[MachineCheck]]] = [
        _python,
        _home,
        _runtime,
        _clock,
        _processor,
        _memory,
        _open_files,
        _zeromq,
        _remote,
        _torch,
        _convolutions,
        _extras,
    ]
    return [check for part in parts for check in part()]


def _python() -> Iterator[MachineCheck]:
    yield MachineCheck(
        "ok", "python", f"{platform.python_version()} on {platform.system()} {platform.release()}"
    )


def _home() -> Iterator[MachineCheck]:
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
        yield MachineCheck("FAIL", "home", str(error))
        return
    except OSError as error:
        yield MachineCheck(
            "FAIL", "home", f"{home} cannot be written: {error.strerror}", "set ESPER_HOME elsewhere"
        )
        return
    mode = home.stat().st_mode & 0o7777
    yield MachineCheck("ok", "home", f"{home}, mode {mode:04o}" + ("" if existed else ", made now"))
    if abs(skew) > MAX_CLOCK_SKEW_SECONDS:
        yield MachineCheck(
            "warn", "home", f"its disk's clock is {skew:+.0f} s off this one", "keep runs on a local disk"
        )
    yield _disk(home)


def _disk(home: Path) -> MachineCheck:
    free = shutil.disk_usage(home).free
    text = f"{free / GIB:.1f} GiB free for runs"
    if free < DISK_FAIL_BYTES:
        return MachineCheck("FAIL", "disk", text, "free some, or set ESPER_HOME to another disk")
    if free < DISK_WARN_BYTES:
        return MachineCheck("warn", "disk", text, "journals and checkpoints may fill it")
    return MachineCheck("ok", "disk", text)


def _runtime() -> Iterator[MachineCheck]:
    """A socket is really bound in a folder like a run's, which is removed again."""
    try:
        folder = socket_folder(secrets.token_hex(4))
    except FolderError as error:
        yield MachineCheck("FAIL", "sockets", str(error))
        return
    path = folder / "qry"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError as error:
        yield MachineCheck(
            "FAIL",
            "sockets",
            f"{folder.parent}: {error.strerror}",
            "set XDG_RUNTIME_DIR to a folder on a local disk",
        )
    else:
        length = len(os.fsencode(path))
        yield MachineCheck(
            "ok", "sockets", f"{folder.parent}, paths of {length} of {MAX_SOCKET_PATH_BYTES} bytes"
        )
    finally:
        path.unlink(missing_ok=True)
        folder.rmdir()


def _clock() -> Iterator[MachineCheck]:
    now = time.time()
    written = []
    for journal in esper_home().glob(f"runs/*/{EVENTS_FILE}"):
        with suppress(OSError):  # removed meanwhile
            written.append(journal.stat().st_mtime)
    ahead = max(written, default=now) - now
    if now < MIN_CLOCK_SECONDS:
        yield MachineCheck("FAIL", "clock", f"it shows {time.ctime(now)}", "set the clock")
    elif ahead > MAX_CLOCK_SKEW_SECONDS:
        yield MachineCheck(
            "warn", "clock", f"a journal was written {ahead:.0f} s in the future", "look at the clock (NTP)"
        )
    else:
        yield MachineCheck("ok", "clock", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def _processor() -> Iterator[MachineCheck]:
    seen = count_cores()
    load, share = os.getloadavg()[0], cpu_quota()
    text = f"{seen} cores, load {load:.1f}"
    if share is not None and share < seen:
        advice = f"--set envs.threads={max(1, int(share))}"
        yield MachineCheck("warn", "cores", f"{text}; this container may use {share:.1f} of them", advice)
    elif load > 2 * seen:
        yield MachineCheck("warn", "cores", text, "other processes use the cores; epochs will be slow")
    else:
        yield MachineCheck("ok", "cores", text)


def _memory() -> Iterator[MachineCheck]:
    total, used = memory()
    text = f"{(total - used) / GIB:.1f} of {total / GIB:.1f} GiB available"
    if total - used < MEMORY_WARN_BYTES:
        yield MachineCheck("warn", "memory", text, "a run needs about 1 GiB")
    else:
        yield MachineCheck("ok", "memory", text)


def _open_files() -> Iterator[MachineCheck]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MIN_OPEN_FILES:
        yield MachineCheck(
            "warn", "files", f"{soft} open files allowed", "ulimit -n 1024, else clients are turned away"
        )
    else:
        yield MachineCheck("ok", "files", f"{soft} open files allowed")


def _zeromq() -> Iterator[MachineCheck]:
    text = f"pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}"
    if not zmq.has("ipc"):
        yield MachineCheck("FAIL", "zeromq", f"{text} without ipc", "reinstall pyzmq from its wheel")
    else:
        yield MachineCheck("ok", "zeromq", text)


def _remote() -> Iterator[MachineCheck]:
    """Check what is needed to reach other machines, and to be reached; most runs need neither."""
    if shutil.which("ssh") is None:
        yield MachineCheck(
            "warn", "ssh", "ssh is not installed, so --ssh cannot be used", "install OpenSSH's client"
        )
    else:
        yield MachineCheck("ok", "ssh", "--ssh can be used")
    if not config_folder().exists():
        yield MachineCheck("ok", "keys", "none, so no gateway can listen; --ssh needs none")
        return
    files = [config_folder() / "server.key", *sorted((config_folder() / "keys").glob("*.key"))]
    for path in (path for path in files if path.exists() or path.is_symlink()):
        try:
            read_secret(path)
        except KeysUnusable as error:
            yield MachineCheck("FAIL", "keys", str(error))
    allowed = AllowList()
    for problem in allowed.problems:
        yield MachineCheck("warn", "keys", problem)
    names = ", ".join(f"{one.name} ({one.role})" for one in allowed.clients.values())
    yield MachineCheck("ok", "keys", f"authorized in {allowed.folder}: {names or 'none'}")


def _torch() -> Iterator[MachineCheck]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield MachineCheck("FAIL", "torch", str(error), install_command("trainer"))
        return
    yield MachineCheck("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads by default")
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    if torch.version.cuda and not cuda:
        yield MachineCheck(
            "warn", "device", "torch is built for CUDA and sees no device", "look at nvidia-smi"
        )
    for name in ("cpu", *(f"cuda:{index}" for index in cuda)):
        yield _device(name)


def _convolutions() -> Iterator[MachineCheck]:
    """Name the operations by which the hosts of images convolve on a CPU."""
    try:
        from esper_overwatch.trainer.compute import native_convolution
    except (ImportError, OSError):
        return  # the check of torch reports it
    if reason := native_convolution.absence():
        yield MachineCheck("warn", "kernel", "torch convolves on the CPU, not the native kernel", reason)
    else:
        yield MachineCheck("ok", "kernel", f"native convolutions, {native_convolution.instruction_set()}")


def _device(name: str) -> MachineCheck:
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
        return MachineCheck(
            "FAIL", "device", f"{name}: {first_line(error)}", "--device cpu, or look at nvidia-smi"
        )
    if not right:
        return MachineCheck("FAIL", "device", f"{name} multiplies wrongly", "do not train on it")
    return MachineCheck("ok", "device", text)


def _extras() -> Iterator[MachineCheck]:
    for module, (extra, purpose) in EXTRAS.items():
        if module == "pynvml" and not Path("/dev/nvidiactl").exists():
            continue
        if importlib.util.find_spec(module) is not None:
            yield MachineCheck("ok", "extra", f"{module} is installed, for {purpose}")
            continue
        install = install_command(extra) if extra else f"{sys.executable} -m pip install nvidia-ml-py"
        yield MachineCheck("warn", "extra", f"{module} is not installed, for {purpose}", install)
