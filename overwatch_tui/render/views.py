"""The views: which panels a digit shows, and where. Only names: the command line offers them."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

Columns = tuple[tuple[str, ...], ...]
"""Names of panels from top to bottom, for each column from left to right."""


class PanelGroup(NamedTuple):
    """What a digit shows: panels that one needs together."""

    key: str
    name: str
    one: tuple[str, ...]
    """All panels in the order of Tab; on a narrow screen as many as fit are in its one column."""
    two: Columns = ()
    """Panels of a screen with two columns; none = the one column takes all of it."""
    three: Columns = ()
    """The same with three; none = as with two."""

    @property
    def title(self) -> str:
        return self.name.capitalize()

    def columns(self, number: int) -> Columns:
        """Columns of a screen with room for 1, 2 or 3."""
        return ((self.three if number == 3 else ()) or self.two if number > 1 else ()) or (self.one,)


_PROBLEMS = PanelGroup("2", "problems", ("incidents",))
_MACHINE = ("system", "log", "commands", "profile")
VIEWS = (
    PanelGroup(
        "1",
        "run",
        ("envs", "env", "policy", "log", "curves", "incidents"),
        (("envs", "env", "policy"), ("incidents", "curves", "log")),
    ),
    _PROBLEMS,
    PanelGroup("3", "policy", ("policy", "decisions", "pins"), (), (("policy",), ("decisions",))),
    PanelGroup("4", "seeds", ("seeds", "drift", "layers"), (), (("seeds",), ("drift", "layers"))),
    PanelGroup("5", "machine", _MACHINE, (), (("system", "log"), ("commands", "profile"))),
)
PUBLISHED_VIEWS = (
    PanelGroup(
        "1",
        "run",
        ("metrics", "log", "about"),
        (("metrics", "log"), ("about",)),
        (("metrics", "log"), ("charts",), ("about",)),
    ),
    _PROBLEMS,
    PanelGroup("3", "metrics", ("charts", "pins")),
    PanelGroup("5", "machine", _MACHINE[:-1], (), (("system", "log"), ("commands",))),
)
"""Those of a published run; those that both kinds of run have are under the same keys."""


def view_names() -> list[str]:
    """Names of all views and of the panels in them, those of published runs included."""
    tables = (VIEWS, PUBLISHED_VIEWS)
    names = [[*(one.name for one in views), *(name for one in views for name in one.one)] for views in tables]
    return list(dict.fromkeys(chain(*names)))
