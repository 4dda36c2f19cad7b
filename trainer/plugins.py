"""Extensions by third parties, found by the entry points of their installed packages.

`esper.blueprints`: a callable `(channels, size) -> torch.nn.Module`, see `trainer.seeds.plugin_blueprints`.
`esper.tasks`: a callable `() -> Dataset | Text`, see `trainer.data.registry`.

Only what a run names is imported, so that what is installed beside it cannot break it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from esper_overwatch.protocol.errors import EsperError, first_line

BLUEPRINT_GROUP = "esper.blueprints"
TASK_GROUP = "esper.tasks"


class PluginError(EsperError):
    """An installed package offers something that cannot be used; the message names the entry point."""

    exit_code = 9


@functools.lru_cache(maxsize=4)
def _read_points(group: str, path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001 (the answer is kept for it)
    """Read a file of every package that is installed, once for each `sys.path`."""
    return entry_points(group=group)


def list_names(group: str) -> list[str]:
    """Names that the installed packages offer, sorted."""
    return sorted({point.name for point in _read_points(group, tuple(sys.path))})


def describe(point: EntryPoint) -> str:
    """The entry point as messages name it."""
    package = f" of {point.dist.name}" if point.dist else ""
    return f"entry point {point.group}: {point.name} = {point.value}{package}"


def find(group: str, name: str) -> tuple[Callable[..., Any], str] | None:
    """The callable that an installed package offers by that name, and what messages call it.

    Raises:
        PluginError: several packages offer it, it cannot be imported, or it is not callable.
    """
    points = list(
        {point.value: point for point in _read_points(group, tuple(sys.path)).select(name=name)}.values()
    )
    if not points:
        return None
    what = describe(points[0])
    if len(points) > 1:
        raise PluginError(f"{what}: and also {describe(points[1])}; uninstall one of them")
    try:
        made = points[0].load()
    except Exception as error:
        raise PluginError(
            f"{what}: cannot be imported: {one_line(error)}; repair or uninstall its package"
        ) from error
    if not callable(made):
        raise PluginError(f"{what}: is {type(made).__name__}, not callable")
    return made, what


def one_line(error: BaseException) -> str:
    """Type and first line of an error."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
