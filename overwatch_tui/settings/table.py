"""All settings: names, values, meaning. File, environment, command line and screen follow this table."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from esper_overwatch.overwatch_tui.render.notifier import CHOICES, parse_quiet_hours
from esper_overwatch.overwatch_tui.render.palettes import PALETTES
from esper_overwatch.overwatch_tui.render.view_state import REFRESH_RATES, SORTS
from esper_overwatch.overwatch_tui.render.views import view_names
from esper_overwatch.protocol.errors import EsperError

SettingValue = str | float | bool

_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class BadSetting(EsperError):
    """A setting, a value, an action or a key that does not exist."""

    exit_code = 2


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    choices: tuple[SettingValue, ...]
    """All values; examples where `read` takes others."""
    default: SettingValue
    help: str
    is_live: bool = True
    """True if a change in the settings screen shows at once; else it shows at the next start."""
    read: Callable[[str], object] | None = None
    """Takes any text but those that it refuses by a ValueError; None = the values are all."""

    def check(self, value: object, where: str) -> SettingValue:
        """The value, where it is one of the choices and of their type.

        Args:
            value: as TOML gives it.
            where: stands before the message.

        Raises:
            BadSetting: it is not.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        for choice in self.choices:
            is_same_type = isinstance(choice, float) if is_number else type(choice) is type(value)
            if is_same_type and choice == value:
                return choice
        if self.read is not None and isinstance(value, str):
            try:
                self.read(value)
            except ValueError as error:
                raise BadSetting(f"{where}: {self.name} = {value!r}: must be {self.allowed}") from error
            return value
        near = nearest(str(value), [format_value(choice) for choice in self.choices])
        raise BadSetting(f"{where}: {self.name} = {value!r}: must be {self.allowed}{near}")

    def parse(self, text: str, where: str) -> SettingValue:
        """The value that a text means; see `check`."""
        value: SettingValue = text
        if isinstance(self.default, bool):
            value = _WORDS.get(text.strip().lower(), text)
        elif isinstance(self.default, float):
            try:
                value = float(text)
            except ValueError:
                value = text
        return self.check(value, where)

    @property
    def allowed(self) -> str:
        """Its values in words."""
        texts = [format_value(choice) for choice in self.choices]
        if self.read is not None:
            return f"{texts[0]}, or such as {texts[1]}"
        return f"{', '.join(texts[:-1])} or {texts[-1]}"


def format_value(value: object) -> str:
    """A value as TOML writes it, without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?`, or nothing where no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""


DEFAULT = "default"
"""Typed in place of a value: takes it out of the file."""
_OFF_ON = (False, True)
SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("theme", ("auto", *PALETTES), "auto", "Colours; auto = by what the terminal can show."),
        Setting("refresh", REFRESH_RATES, 1.0, "Frames per second."),
        Setting(
            "glyphs",
            ("auto", "unicode", "ascii"),
            "auto",
            "Characters; auto = ASCII on the Linux console and where the locale is not UTF-8.",
        ),
        Setting(
            "mouse",
            _OFF_ON,
            False,
            "Take clicks and the wheel; most terminals then mark text with Shift.",
            is_live=False,
        ),
        Setting(
            "notify",
            CHOICES,
            "auto",
            "How a new critical incident is told: bell, or also a notification of the desktop.",
            is_live=False,
        ),
        Setting(
            "quiet",
            ("off", "22:00-07:00"),
            "off",
            "Hours of the day, by the local clock, in which no bell rings and no notification is sent.",
            read=parse_quiet_hours,
        ),
        Setting(
            "view", tuple(view_names()), "run", "View, or panel of one, that is shown first.", is_live=False
        ),
        Setting("sort", SORTS, "attention", "Order of the envs."),
        Setting("read_only", _OFF_ON, False, "Watch only; send no commands.", is_live=False),
    )
}
"""Settings by name, in the order of the settings screen."""
