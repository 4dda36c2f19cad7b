"""The post-mortem bundle: what an abnormal end leaves behind in `postmortem/<boot>/` of the run's folder.

    report.json      why, when, where in the run; what could not be gathered
    exception.txt    the exception with its traceback
    stacks.txt       every thread's stack at the end
    events.ndjson    the last events, as in the journal
    config.toml      the configuration, as `--config` reads it
    environment.json versions, device, cores, memory, the variables that mean something to a run
    sick_env.pt      slots, weights, buffers of the env whose numbers are not finite or that was last put back

The folder appears completely or not at all; a part that cannot be gathered is named in the report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch

from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.journal.reader import newest_lines
from esper_overwatch.protocol.machine.cgroup import granted_cores, memory
from esper_overwatch.protocol.machine.provenance import installed_packages
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.doctor.bundle import PostmortemReport, list_bundles
from esper_overwatch.trainer.hosts.population import Population

logger = logging.getLogger(__name__)

LAST_EVENTS = 500
MAX_BUNDLES = 10
"""Newest bundles of a run that stay."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR")


@dataclass(frozen=True, kw_only=True)
class PostmortemSubject:
    """Sources of a bundle."""

    folder: Path
    """`postmortem` in the run's folder."""
    server: Server
    config: Config
    device: torch.device
    population: Population


def write(subject: PostmortemSubject, report: PostmortemReport, cause: BaseException | None) -> Path | None:
    """Gather the bundle; never raises.

    Args:
        report: what is known of the end; `sick_env` and `missing` are filled in.
        cause: the exception that ended the run, where one did.

    Returns:
        The bundle's folder, or None where it could not be written; the log says why.
    """
    partial = subject.folder / f".{report.boot}.partial"
    try:
        subject.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        for name, content in _parts(subject, report, cause):
            _put(partial / name, content, report)
        (partial / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        target = subject.folder / report.boot
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except Exception:
        logger.exception("the post-mortem in %s could not be written", subject.folder)
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        return None
    for old in list_bundles(subject.folder)[:-MAX_BUNDLES]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def _put(path: Path, content: Callable[[Path], None], report: PostmortemReport) -> None:
    try:
        content(path)
    except OSError:
        raise
    except Exception as error:
        logger.exception("post-mortem: %s could not be gathered", path.name)
        report.missing[path.name] = f"{type(error).__name__}: {error}"
        path.unlink(missing_ok=True)


def _parts(
    subject: PostmortemSubject, report: PostmortemReport, cause: BaseException | None
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Names and writers of the parts, the ones that cannot fail first."""
    yield "stacks.txt", _stacks
    if cause is not None:
        yield "exception.txt", lambda path: _text(path, "".join(traceback.format_exception(cause)))
    yield "config.toml", lambda path: _text(path, settings.to_toml(subject.config))
    yield "events.ndjson", lambda path: _events(path, subject.server)
    yield "environment.json", lambda path: _environment(path, subject)
    yield "sick_env.pt", lambda path: _sick_env(path, subject.population, report)


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _stacks(path: Path) -> None:
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)


def _events(path: Path, server: Server) -> None:
    """The journal's last events; where the wire has died, those that it left in the queues as well."""
    server.flush()
    lines = [line for _, _, line in newest_lines(server.run.events)]
    if server.error is not None:
        waiting = server.emitter.drain(LAST_EVENTS)
        lines += [encode_event(0, item.ns // 1000, item.ctx, item.event) for item in waiting]
    path.write_bytes(b"".join(line + b"\n" for line in lines[-LAST_EVENTS:]))


def _environment(path: Path, subject: PostmortemSubject) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(environment(subject.device))))


def environment(device: torch.device) -> dict[str, Any]:
    """Environment of the run: versions, device, cores, memory in bytes, variables."""
    total, used = memory()
    known = (*sorted(settings.variables()), *THREAD_VARIABLES)
    return {
        "esper_overwatch": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": installed_packages(sys.path),
        "device": {"name": str(device), **_accelerator(device)},
        "cores": granted_cores(),
        "threads": torch.get_num_threads(),
        "load": list(os.getloadavg()),
        "memory": {"total": total, "available": total - used, "own": psutil.Process().memory_info().rss},
        "variables": {name: os.environ[name] for name in known if name in os.environ},
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _accelerator(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    try:
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
    except RuntimeError as error:  # after an illegal access nothing can be asked any more
        return {"error": first_line(error)}
    model = torch.cuda.get_device_name(device)
    return {"model": model, "memory_free": free, "memory_total": total, "memory_peak": peak}


def _sick_env(path: Path, population: Population, report: PostmortemReport) -> None:
    found = population.failed_env()
    if found is None:
        return
    buffer = io.BytesIO()
    torch.save(found, buffer)
    path.write_bytes(buffer.getbuffer())
    report.sick_env = found["env"]
