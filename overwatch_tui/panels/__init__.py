"""One file a panel, and one table of them: what can be shown, by which key, and where.

A new panel is its file, which ends in a `Renderer`, and a row here: keys, tabs, help and layout follow.
Imports `model`, `render` and the table of keys; `screens`, the application and the command line import it.
"""

from esper_overwatch.overwatch_tui.render.panel import PanelTable
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

_PANELS = {
    "envs": envs.RENDERER,
    "env": env.RENDERER,
    "incidents": incidents.RENDERER,
    "policy": policy.RENDERER,
    "decisions": decisions.RENDERER,
    "curves": curves.RENDERER,
    "seeds": seeds.RENDERER,
    "drift": drift.RENDERER,
    "layers": layers.RENDERER,
    "system": system.RENDERER,
    "log": log.RENDERER,
    "commands": commands.RENDERER,
    "profile": profile.RENDERER,
    "metrics": metrics.RENDERER,
    "charts": metric_charts.RENDERER,
    "about": about.RENDERER,
    "pins": pins.RENDERER,
    "empty": empty.RENDERER,
}
PANELS = PanelTable(_PANELS, VIEWS, PanelTable(_PANELS, PUBLISHED_VIEWS))
