"""Blueprints by name, for a family of hosts: the built-in ones and those of installed packages."""

from __future__ import annotations

from typing import Literal

from .. import plugins
from . import blueprints, causal
from .blueprints import Blueprint, BlueprintError
from .modules import module_blueprint

Family = Literal["cnn", "transformer"]

BUILT_IN: dict[Family, dict[str, Blueprint]] = {
    "cnn": blueprints.BLUEPRINTS,
    "transformer": causal.BLUEPRINTS,
}


def blueprint(name: str, family: Family) -> Blueprint:
    """The blueprint of that name for hosts of that family.

    Raises:
        BlueprintError: there is none.
        PluginError: a package offers it and it cannot be used.
    """
    known = BUILT_IN[family]
    plugin = plugins.find(plugins.BLUEPRINTS, name)
    if plugin is None and name in known:
        return known[name]
    if plugin is None:
        there = ", ".join([*known, *plugins.names(plugins.BLUEPRINTS)])
        raise BlueprintError(
            f"seeds.blueprints: no blueprint named {name!r} for a {family} host; there are {there}"
        )
    make, what = plugin
    if any(name in others for others in BUILT_IN.values()):
        raise plugins.PluginError(f"{what}: {name} is built in; rename it or uninstall its package")
    return module_blueprint(name, make, what)
