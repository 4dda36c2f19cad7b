"""Rules of the user's own: `[alerts.NAME]` in `alerts.toml`, beside the settings of the terminal."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.storage.folders import StrPath, config_folder, is_valid_name

from .condition import Condition, parse_condition

FILE_NAME = "alerts.toml"
FILE_VARIABLE = "ESPER_ALERTS_FILE"
"""Names another file; the option of a training that says the same is `alerts.file`."""
Shape = Literal["json", "slack", "discord"]
RunAction = Literal["pause", "stop"]


class AlertRulesError(EsperError):
    """The file of rules cannot be read, or a rule in it is wrong; names file, rule and what to write."""

    exit_code = 9


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When to raise an alert, and what to do then."""

    name: str
    when: Condition
    webhook: str = ""
    """Address; it may hold a secret, and is never shown or published."""
    shape: Shape = "json"
    """Of what the webhook is sent."""
    command: tuple[str, ...] = ()
    """Program and arguments."""
    run: RunAction | None = None
    """What the run is told to do; a stop saves a checkpoint."""

    @property
    def deliveries(self) -> tuple[str, ...]:
        """Names of what leaves the run."""
        return ("webhook",) * bool(self.webhook) + ("command",) * bool(self.command)


def rules_path(file: StrPath | None = None) -> Path:
    """The file named, else by `$ESPER_ALERTS_FILE`, else `~/.config/esper/alerts.toml`."""
    named = os.fspath(file or "") or os.environ.get(FILE_VARIABLE)
    return Path(named).expanduser() if named else config_folder() / FILE_NAME


def read_rules(file: StrPath | None = None) -> tuple[Rule, ...]:
    """The rules of a file; none where the usual file is not there.

    Raises:
        AlertRulesError: a file that was named is not there, or it cannot be read, or a rule is wrong.
    """
    try:
        path = rules_path(file)
    except RuntimeError:
        raise AlertRulesError(f"{file}: is in the home of an unknown user; name another file") from None
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path == config_folder() / FILE_NAME:
            return ()
        raise AlertRulesError(f"{path}: is not there; write it, or name another file of rules") from None
    except OSError as error:
        raise AlertRulesError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML's, UTF-8's, and of a name with a NUL
        raise AlertRulesError(f"{path}: is not TOML: {error}") from None
    tables = document.pop("alerts", {})
    if document or not isinstance(tables, dict):
        key = next(iter(document), "alerts")
        raise AlertRulesError(f"{path}: {key}: write each rule as a table, [alerts.NAME]")
    return tuple(_rule(name, table, f"{path}: alerts.{name}") for name, table in tables.items())


def _rule(name: str, table: object, place: str) -> Rule:
    if not is_valid_name(name):
        raise AlertRulesError(f"{place!r}: the name must be letters, digits, '-', '_' and '.'")
    if not isinstance(table, dict) or "when" not in table:
        raise AlertRulesError(f'{place}: has no condition; write when = "loss is nan"')
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise AlertRulesError(f"{place}: unknown key {key!r:.80}; there are {', '.join(_KEYS)}")
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise AlertRulesError(f"{place}: {key}: {error}") from None
    if not {"webhook", "command", "run"} & set(values):
        raise AlertRulesError(f"{place}: does nothing; add webhook, command or run")
    if "shape" in values and "webhook" not in values:
        raise AlertRulesError(f"{place}: shape goes with webhook; leave it out, or add webhook")
    return Rule(name=name, **values)


def _condition(value: object) -> Condition:
    if not isinstance(value, str):
        raise ValueError('must be text, as in: when = "loss is nan"')
    return parse_condition(value)


def _address(value: object) -> str:
    """Check an address; what is wrong is said without showing it."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be an address that begins with https:// or http://, as text")
    if parts.username is not None or parts.fragment:
        raise ValueError("must have neither a user before '@' nor a part behind '#'")
    return text


def _arguments(value: object) -> tuple[str, ...]:
    is_list = isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)
    if not is_list or not value[0] or any("\0" in word for word in value):  # type: ignore[index, attr-defined]
        raise ValueError('must be a list of texts, the program first, as in: ["notify-send", "esper"]')
    return tuple(value)  # type: ignore[arg-type]


def _one_of(kind: Any) -> Callable[[object], Any]:
    def check(value: object) -> Any:
        if value not in get_args(kind):
            raise ValueError(f"{value!r:.80}: must be {' or '.join(get_args(kind))}")
        return value

    return check


_KEYS: Mapping[str, Callable[[object], Any]] = {
    "when": _condition,
    "webhook": _address,
    "shape": _one_of(Shape),
    "command": _arguments,
    "run": _one_of(RunAction),
}
