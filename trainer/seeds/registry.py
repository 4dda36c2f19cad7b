"""Blueprints by name, for a family of hosts: the built-in ones and those of installed packages."""

from __future__ import annotations

from typing import Literal

from esper_overwatch.trainer import plugins

from . import image_blueprints as blueprints
from . import text_blueprints as causal
from .image_blueprints import Blueprint, BlueprintError, SizedBlueprint
from .plugin_blueprints import module_blueprint

Family = Literal["cnn", "transformer"]

BUILT_IN_BLUEPRINTS: dict[Family, dict[str, Blueprint]] = {
    "cnn": blueprints.BLUEPRINTS,
    "transformer": causal.BLUEPRINTS,
}

SIZED_BLUEPRINTS: dict[Family, dict[str, SizedBlueprint]] = {
    "cnn": blueprints.SIZED_BLUEPRINTS,
    "transformer": causal.SIZED_BLUEPRINTS,
}


def blueprint(name: str, family: Family) -> Blueprint:
    """The blueprint of that name for hosts of that family.

    Args:
        name: of a built-in one or of a package's; `name:option=value` chooses a size.

    Raises:
        BlueprintError: there is none, or not in that size.
        PluginError: a package offers it and it cannot be used.
    """
    known = BUILT_IN_BLUEPRINTS[family]
    base, colon, choice = name.partition(":")
    if colon and base in known:
        return _sized(name, base, choice, SIZED_BLUEPRINTS[family].get(base))
    plugin = plugins.find(plugins.BLUEPRINT_GROUP, name)
    if plugin is None and name in known:
        return known[name]
    if plugin is None:
        there = ", ".join([*known, *plugins.list_names(plugins.BLUEPRINT_GROUP)])
        raise BlueprintError(
            f"seeds.blueprints: no blueprint named {name!r} for a {family} host; there are {there}"
        )
    make, what = plugin
    if any(name in others for others in BUILT_IN_BLUEPRINTS.values()):
        raise plugins.PluginError(f"{what}: {name} is built in; rename it or uninstall its package")
    return module_blueprint(name, make, what)


def _sized(name: str, base: str, choice: str, sized: SizedBlueprint | None) -> Blueprint:
    if sized is None:
        raise BlueprintError(f"seeds.blueprints = {name}: {base} comes in one size; leave :{choice} out")
    option, _, text = choice.partition("=")
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(sized.maximum)) else 0
    if option != sized.option or not 1 <= value <= sized.maximum:
        raise BlueprintError(
            f"seeds.blueprints = {name}: write {base}:{sized.option}=N, "
            f"N an integer from 1 to {sized.maximum}"
        )
    made: Blueprint = sized.make(name=name, chosen=value)
    return made
