"""Sources of settings: defaults, the file, ESPER_TUI_*, the command line; later ones win."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from esper_overwatch.overwatch_tui.keys import ACTIONS, Key
from esper_overwatch.protocol.storage.folders import config_folder, replace_file

from .keymap import remap_keys
from .table import SETTINGS, BadSetting, SettingValue, nearest

PREFIX = "ESPER_TUI_"
FILE_NAME = "tui.toml"
KEYS_TABLE = "keys"


class Chosen(NamedTuple):
    """A value and where it comes from."""

    value: SettingValue
    source: str
    """`default`, `file`, the name of a variable, or the option of the command line."""


@dataclass
class Settings:
    """The value of every setting, and the keys."""

    path: Path
    """The file, which need not exist."""
    chosen: dict[str, Chosen] = field(
        default_factory=lambda: {name: Chosen(each.default, "default") for name, each in SETTINGS.items()}
    )
    keys: tuple[Key, ...] = ACTIONS

    def __getitem__(self, name: str) -> SettingValue:
        return self.chosen[name].value

    def text(self, name: str) -> str:
        return str(self[name])


def settings_path() -> Path:
    """`~/.config/esper/tui.toml`, or where XDG_CONFIG_HOME says."""
    return config_folder() / FILE_NAME


def read_settings(
    environ: Mapping[str, str],
    options: Mapping[str, SettingValue | None] | None = None,
    path: Path | None = None,
) -> Settings:
    """All settings.

    Args:
        options: of the command line; None = not given.
        path: the file; None = the usual one.

    Raises:
        BadSetting: anywhere something is that does not exist; the message names the place.
    """
    made = Settings(path or settings_path())
    document = read_file(made.path)
    for name, value in document.items():
        if name == KEYS_TABLE:
            if not isinstance(value, dict):
                raise BadSetting(f"{made.path}: keys must be a table: [keys]")
            made.keys = remap_keys(value, str(made.path))
            continue
        setting = SETTINGS.get(name)
        if setting is None:
            raise BadSetting(f"{made.path}: unknown setting {name}{nearest(name, [*SETTINGS, KEYS_TABLE])}")
        made.chosen[name] = Chosen(setting.check(value, str(made.path)), "file")
    for variable, text in environ.items():
        if variable.startswith(PREFIX):
            name = variable.removeprefix(PREFIX).lower()
            if name not in SETTINGS:
                near = nearest(variable, [PREFIX + known.upper() for known in SETTINGS])
                raise BadSetting(f"unknown variable {variable}{near}")
            made.chosen[name] = Chosen(SETTINGS[name].parse(text, variable), variable)
    for name, option in (options or {}).items():
        if option is not None:
            made.chosen[name] = Chosen(SETTINGS[name].check(option, "command line"), "command line")
    return made


def read_file(path: Path) -> dict[str, object]:
    """The file's contents; nothing where there is none.

    Raises:
        BadSetting: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path}: is not TOML: {error}") from error


def write_setting(path: Path, name: str, value: SettingValue | None) -> None:
    """Set a value in the file, or take it out (None); comments and order stay as they are.

    Raises:
        BadSetting: the file cannot be read as TOML, or not be written.
    """
    import tomlkit

    read_file(path)
    try:
        path = path.resolve()  # a link, as people have who keep such files in one place, stays one
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        document = tomlkit.parse(text)
        if value is None:
            document.pop(name, None)
        else:
            document[name] = value
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, tomlkit.dumps(document).encode())
    except OSError as error:
        raise BadSetting(f"{path}: cannot be written: {error.strerror}") from error
