"""Configurations with a name: `esper-daemon start --preset NAME`.

Each is a TOML file beside this one, whose first line is a comment that says what it is for.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from esper_overwatch.protocol.errors import EsperError

_FOLDER = Path(__file__).parent


class UnknownPreset(EsperError):
    """No preset has that name; the message suggests a similar one."""

    exit_code = 9


def presets() -> dict[str, str]:
    """Purpose of each preset, by name."""
    files = sorted(_FOLDER.glob("*.toml"), key=lambda file: file.stem)
    return {f.stem: f.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for f in files}


def path(name: str) -> Path:
    """The file of a preset.

    Raises:
        UnknownPreset: there is none.
    """
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownPreset(f"--preset: {name} is not a preset{hint}; `esper-daemon presets` lists them")
    return _FOLDER / f"{name}.toml"
