"""Blueprints by name, for a family of hosts: the built-in ones and those of installed packages."""

from __future__ import annotations

from typing import Literal

from trainer import plugins

from . import image_blueprints as blueprints
from . import text_blueprints as causal
from .image_blueprints import Blueprint, BlueprintError
from .plugin_blueprints import module_blueprint

Family = Literal["cnn", "transformer"]

BUILT_IN_BLUEPRINTS: dict[Family, dict[str, Blueprint]] = {
    "cnn": blueprints.BLUEPRINTS,
    "transformer": causal.BLUEPRINTS,
}


def blueprint(name: str, family: Family) -> Blueprint:
    """The blueprint of that name for hosts of that family.

    Raises:
        BlueprintError: there is none.
        PluginError: a package offers it and it cannot be used.
    """
    known = BUILT_IN_BLUEPRINTS[family]
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
