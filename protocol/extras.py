"""Optional packages: the extra that brings each one, and the command that installs it here."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from .errors import MissingExtra, first_line

EXTRAS = {
    "aiohttp": "serve",
    "duckdb": "export",
    "matplotlib": "compare",
    "mcp": "mcp,export",
    "numpy": "trainer",
    "optuna": "sweep",
    "prometheus_client": "metrics",
    "pyarrow": "export",
    "pytz": "export",
    "scipy": "trainer",
    "sklearn": "trainer",
    "sqlalchemy": "sweep",
    "tensorboard": "export",
    "textual_serve": "serve",
    "tokenizers": "text",
    "torch": "trainer",
    "wandb": "wandb",
}
"""Extra by the name that is imported."""


def missing_extra(error: ImportError) -> MissingExtra | None:
    """The error for the operator, where an import has failed for want of an extra; None for any other."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    is_absent = isinstance(error, ModuleNotFoundError) and (error.name == package or not _is_there(package))
    reason = "is not installed" if is_absent else f"cannot be imported ({first_line(error)})"
    return MissingExtra(f"{package} {reason}; install it with: {install_command(EXTRAS[package])}")


def require(package: str) -> None:
    """Check for a package before what needs it is begun.

    Raises:
        MissingExtra: it is not installed.
    """
    if not _is_there(package) and (error := missing_extra(ModuleNotFoundError(name=package))):
        raise error


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def install_command(extras: str) -> str:
    """Command that adds these extras here: to the checkout that runs, else to the release."""
    checkout = Path(__file__).parents[2]
    where = [f"esper-overwatch[{extras}]"]
    if (checkout / "pyproject.toml").exists():
        where = ["-e", f"{checkout}[{extras}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *where])
