"""One file a panel, and one table of them: what can be shown, by which key, and where.

A new panel is its file, which ends in a `Renderer`, and a row here: keys, tabs, help and layout follow.
Imports `model`, `render` and the table of keys; `screens`, the application and the command line import it.
"""

from esper_overwatch.overwatch_tui.render.panel import Panel, PanelTable, Place

from . import (
    about,
    commands,
    curves,
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

_PUBLISHED = PanelTable(
    Panel("metrics", metrics.RENDERER, Place("a1", "a1", "a1"), key="1", tab=("Metr", "Metrics")),
    Panel("incidents", incidents.RENDERER, key="2", tab=("Inc", "Incidents")),
    Panel("charts", metric_charts.RENDERER, Place("", "b1", "b1"), key="3", tab=("Charts", "Charts")),
    Panel("about", about.RENDERER, Place("", "", "c1"), key="4", tab=("About", "About")),
    Panel("log", log.RENDERER, Place("a2", "a2", "a2"), key="6", tab=("Log", "Log")),
    Panel("commands", commands.RENDERER, Place("", "", "c2"), key="7", tab=("Cmd", "Commands")),
    Panel("system", system.RENDERER, key="8", tab=("Sys", "System")),
    Panel("pins", pins.RENDERER, key="9", tab=("Pins", "Pinned")),
    Panel("empty", empty.RENDERER),
)
"""Panels of a published run; views that both kinds of run have are under the same keys."""
PANELS = PanelTable(
    Panel("envs", envs.RENDERER, Place("a1", "a1", "a1"), key="1", tab=("Envs", "Main")),
    Panel("incidents", incidents.RENDERER, Place("", "b1", "c1"), key="2", tab=("Inc", "Incidents")),
    Panel("drift", drift.RENDERER, Place("", "b2", "c2"), key="3", tab=("Drift", "Drift")),
    Panel("policy", policy.RENDERER, Place("", "a3", "a2"), key="4", tab=("Policy", "Policy")),
    Panel("seeds", seeds.RENDERER, key="5", tab=("Seeds", "Seeds")),
    Panel("log", log.RENDERER, Place("a3", "b3", "a3"), key="6", tab=("Log", "Log")),
    Panel("commands", commands.RENDERER, Place("", "", "b3"), key="7", tab=("Cmd", "Commands")),
    Panel("system", system.RENDERER, Place("", "", "c3"), key="8", tab=("Sys", "System")),
    Panel("pins", pins.RENDERER, key="9", tab=("", "Pinned")),
    Panel("env", env.RENDERER, Place("a2", "a2", "b1")),
    Panel("curves", curves.RENDERER, Place("", "", "b2")),
    Panel("layers", layers.RENDERER),
    Panel("profile", profile.RENDERER),
    Panel("empty", empty.RENDERER),
    published=_PUBLISHED,
)
VIEWS = tuple(panel.name for panel in PANELS.views)
"""Names of the panels that a key shows alone, in the order of their keys."""
ALL_VIEWS = tuple(dict.fromkeys([*VIEWS, *(panel.name for panel in _PUBLISHED.views)]))
"""Names of all views, those of published runs included."""
