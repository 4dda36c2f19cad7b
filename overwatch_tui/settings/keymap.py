"""Keys that the operator has chosen, by the names of actions."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace

from esper_overwatch.overwatch_tui.keys import ACTIONS, Key

from .table import BadSetting, nearest

_NAMED_KEYS = {
    *("enter", "escape", "space", "tab", "backspace", "delete", "insert", "home", "end"),
    *("up", "down", "left", "right", "pageup", "pagedown"),
    *(f"f{number}" for number in range(1, 25)),
}
_MODIFIED = {*_NAMED_KEYS, *string.ascii_lowercase, *string.digits}
_RENAMED = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
"""Textual's names of characters, where they are not those of Unicode."""


def key_name(text: str) -> str | None:
    """Textual's name of a key: a character, a name, or one with modifiers; None where there is none."""
    if len(text) == 1:
        return _character_name(text)
    *modifiers, last = text.lower().split("+")
    if not modifiers and last in _NAMED_KEYS:
        return last
    if modifiers and set(modifiers) <= {"ctrl", "shift", "alt"} and last in _MODIFIED:
        return "+".join([*modifiers, last])
    known = {name for character in string.punctuation if (name := _character_name(character))}
    return text.lower() if text.lower() in known else None


def _character_name(character: str) -> str | None:
    if character.isalnum():
        return character
    if character == " ":
        return "space"
    if not character.isprintable():
        return None
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return _RENAMED.get(name, name) or None


def remap_keys(chosen: Mapping[str, object], where: str, keys: Sequence[Key] = ACTIONS) -> tuple[Key, ...]:
    """The table of keys with those that were chosen in place of the usual ones.

    Args:
        chosen: a key, or a list of keys, by the name of an action.
        where: stands before a message.
        keys: the usual ones.

    Raises:
        BadSetting: an action or a key that does not exist, a key with two actions, a digit.
    """
    names = {key.name: key for key in keys}
    wanted: dict[str, list[str]] = {}
    for action, value in chosen.items():
        if action not in names:
            raise BadSetting(f"{where}: keys: unknown action {action}{nearest(action, names)}")
        wanted[action] = _read_keys(action, value, where)
    made = []
    for action, key in names.items():
        if action in wanted:
            shown = " ".join(_shown(name) for name in wanted[action])
            key = replace(key, keys=",".join(wanted[action]), shown=shown)
        made.append(key)
    _refuse_clashes(made, where)
    return tuple(made)


def _read_keys(action: str, value: object, where: str) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    words = [text for text in texts if isinstance(text, str)]
    if not words or len(words) < len(texts):
        raise BadSetting(
            f'{where}: keys.{action} = {value!r}: must be a key, such as "space", or a list of keys'
        )
    found = []
    for text in words:
        name = key_name(text)
        if name is None:
            near = nearest(text.lower(), sorted(_NAMED_KEYS))
            raise BadSetting(f"{where}: keys.{action} = {text!r}: no such key{near}")
        if name.isdigit():
            raise BadSetting(f"{where}: keys.{action} = {text!r}: digits show the views")
        found.append(name)
    return found


def _refuse_clashes(keys: Sequence[Key], where: str) -> None:
    owner: dict[str, str] = {}
    for key in keys:
        for name in filter(None, key.keys.split(",")):
            other = owner.setdefault(name, key.name)
            if other != key.name:
                raise BadSetting(f"{where}: keys: {_shown(name)} is both {other} and {key.name}; change one")


def _shown(name: str) -> str:
    """A key as the help writes it."""
    for character in string.punctuation:
        if _character_name(character) == name:
            return character
    if name.startswith("ctrl+") and len(name) == 6:
        return f"^{name[5:].upper()}"
    return name if len(name) == 1 else name.capitalize()
