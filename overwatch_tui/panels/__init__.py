"""One file a panel, and one table of them: what can be shown, by which key, and where.

A new panel is its file, which ends in a `Renderer`, and a row here: keys, tabs, help and layout follow.
Imports `model`, `render` and the table of keys; `screens`, the application and the command line import it.
"""

from esper_overwatch.overwatch_tui.render.panel import Panel, PanelGroup, PanelTable

from . import (
    about,
    commands,
    curves,
    decisions,
    drift,
    empty,
    env,
    envs,
    incidents,
    layers,
    log,
    metric_charts,
    metrics,
    pins,
    policy,
    profile,
    seeds,
    system,
)

_PANELS = (
    Panel("envs", envs.RENDERER),
    Panel("env", env.RENDERER),
    Panel("incidents", incidents.RENDERER),
    Panel("policy", policy.RENDERER),
    Panel("decisions", decisions.RENDERER),
    Panel("curves", curves.RENDERER),
    Panel("seeds", seeds.RENDERER),
    Panel("drift", drift.RENDERER),
    Panel("layers", layers.RENDERER),
    Panel("system", system.RENDERER),
    Panel("log", log.RENDERER),
    Panel("commands", commands.RENDERER),
    Panel("profile", profile.RENDERER),
    Panel("metrics", metrics.RENDERER),
    Panel("charts", metric_charts.RENDERER),
    Panel("about", about.RENDERER),
    Panel("pins", pins.RENDERER),
    Panel("empty", empty.RENDERER),
)
_PROBLEMS = PanelGroup("2", "problems", ("incidents",))
_MACHINE = ("system", "log", "commands", "profile")
_PUBLISHED = PanelTable(
    _PANELS,
    (
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
    ),
)
"""Views of a published run; those that both kinds of run have are under the same keys."""
PANELS = PanelTable(
    _PANELS,
    (
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
    ),
    _PUBLISHED,
)
