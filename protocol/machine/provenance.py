"""What a boot runs: code, command line, interpreter, packages and environment, collected beside its start."""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from esper_overwatch.protocol.messages.events import RunProvenance
from esper_overwatch.protocol.version import __version__

from .git import GIT_SECONDS, read_code_state

logger = logging.getLogger(__name__)

MAX_PACKAGES = 1_000
MAX_CHARACTERS = 16_384
"""Of the command line, and of the environment."""
PREFIXES = (
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "ESPER_",
    "GOMP_",
    "HIP_",
    "JAX_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NUMEXPR_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "ROCR_",
    "SLURM_JOB_",
    "TF_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
    "XLA_",
)
"""Beginnings of the names of variables that can change what a program computes."""
NAMES = frozenset({"CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "WORLD_SIZE"})
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "LEASE")
"""A variable that has one of them in its name is left out."""
MASK = "***"
_SECRET_OPTION = re.compile(
    rf"(?P<name>(?:[^=]*[^=A-Za-z])?(?:{'|'.join(SECRET_WORDS)})(?:[^=A-Za-z][^=]*)?)(?P<value>=.*)?",
    re.IGNORECASE | re.DOTALL,
)
"""A word such as `--api-key` or `wandb.token=...`; `--tokenizer` is none."""
_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
CLOSE_SECONDS = GIT_SECONDS + 1.0


class ProvenanceReport:
    """Emits `run.provenance` once it has been collected, in a thread of its own: a start waits for nothing.

    Made by the thread that starts the run, before the program can change what it was started with.

    Args:
        emit: takes the event; called from the thread.
    """

    def __init__(self, emit: Callable[[object], None]) -> None:
        self._emit = emit
        self._command = [*(getattr(sys, "orig_argv", None) or sys.argv)]
        self._environment = dict(os.environ)
        self._paths = [*sys.path]
        try:
            self._folder = os.getcwd()
        except OSError:  # it was removed
            self._folder = ""
        self._thread = threading.Thread(target=self._run, name="esper-provenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until it has been emitted, for as long as git may take."""
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            self._emit(self._collect())
        except Exception:
            logger.exception("the run goes on; what it was started with could not be collected")

    def _collect(self) -> RunProvenance:
        code = read_code_state(Path(self._folder))
        return RunProvenance(
            commit=code.commit,
            dirty=code.dirty,
            diff=code.diff,
            diff_cut=code.diff_cut,
            code_missing=code.missing,
            command=command_words(self._command),
            folder=_utf8(self._folder),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            executable=_utf8(sys.executable or ""),
            packages=installed_packages(self._paths),
            environment=chosen_variables(self._environment),
        )


def installed_packages(paths: Iterable[str]) -> dict[str, str]:
    """Versions of the installed distributions by name; of one that is there twice, the one that is imported.

    Read from the names of their folders, which the specification of installed projects fixes: metadata of a
    hundred distributions take a fifth of a second of the interpreter.

    Args:
        paths: folders, as `sys.path` has them.
    """
    found: dict[str, str] = {}
    for path in paths:
        try:
            names = sorted(os.listdir(path or os.curdir))
        except OSError:  # a zip file, or a folder that is not there
            continue
        for match in filter(None, map(_DISTRIBUTION.fullmatch, names)):
            found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    found["esper-overwatch"] = __version__
    return dict(sorted(found.items())[:MAX_PACKAGES])


def chosen_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change what is computed, without secrets, by name."""
    chosen: dict[str, str] = {}
    room = MAX_CHARACTERS
    for name, value in sorted(environment.items()):
        is_secret = any(word in name.upper() for word in SECRET_WORDS)
        if is_secret or not (name in NAMES or name.startswith(PREFIXES)):
            continue
        room -= len(name) + len(value)
        if room < 0:
            break
        chosen[_utf8(name)] = _utf8(value)
    return chosen


def command_words(words: Sequence[str]) -> list[str]:
    """A command line without the values of options that are called a key, a token, a password."""
    shown: list[str] = []
    room = MAX_CHARACTERS
    is_value = False
    for word in words:
        match = _SECRET_OPTION.fullmatch(word)
        if is_value and not word.startswith("-"):
            word = MASK
        elif match is not None and match["value"] is not None:
            word = f"{match['name']}={MASK}"
        is_value = match is not None and match["value"] is None and word.startswith("-")
        room -= len(word) + 1
        if room < 0:
            return [*shown, "..."]
        shown.append(_utf8(word))
    return shown


def _utf8(text: str) -> str:
    """Text of the system, of which bytes that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
