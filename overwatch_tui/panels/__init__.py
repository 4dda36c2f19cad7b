"""One file a panel, and one table of them: what can be shown, by which key, and where.

A new panel is its file, which ends in a `Renderer`, and a row here: keys, tabs, help and layout follow.
Imports `model`, `render` and the table of keys; `screens`, the application and the command line import it.
"""

from esper_overwatch.overwatch_tui.render.panel import Panel, PanelTable
from esper_overwatch.overwatch_tui.render.views import PUBLISHED_VIEWS, VIEWS

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
PANELS = PanelTable(_PANELS, VIEWS, PanelTable(_PANELS, PUBLISHED_VIEWS))
