"""One file a panel; each is a set of pure functions from a frame to lines."""

from ..frame import Panel
from . import anomalies, commands, curves, drift, empty, env, envs, log, policy, seeds, system

PANELS: dict[str, Panel] = {
    module.PANEL.name: module.PANEL
    for module in (envs, anomalies, drift, policy, seeds, log, commands, system, env, curves, empty)
}
