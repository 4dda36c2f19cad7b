"""In place of `wandb`: `import esper_overwatch.compat.wandb as wandb`."""

from typing import Any

from esper_overwatch.protocol.integrations.wandb_runs import AlertLevel as AlertLevel
from esper_overwatch.protocol.integrations.wandb_runs import CompatibleRun as Run
from esper_overwatch.protocol.integrations.wandb_runs import LoggedArray as Histogram
from esper_overwatch.protocol.integrations.wandb_runs import LoggedImage as Image
from esper_overwatch.protocol.integrations.wandb_runs import LoggedRows as Table
from esper_overwatch.protocol.integrations.wandb_runs import Media, current
from esper_overwatch.protocol.integrations.wandb_runs import init as init

Artifact = Audio = Graph = Html = Molecule = Object3D = Plotly = Settings = Video = Media


def login(*_args: Any, **_named: Any) -> bool:
    """Nobody has to."""
    return True


def setup(*_args: Any, **_named: Any) -> None:
    """Nothing is to be set up."""


def finish(*args: Any, **named: Any) -> None:
    """End the run, if one has begun."""
    run = current()
    if run is not None:
        run.finish(*args, **named)


def __getattr__(name: str) -> Any:
    """`run`, `config`, `summary`, and the methods of the run: log, watch, save, alert, define_metric ..."""
    run = current()
    if name == "run":
        return run
    if name.startswith("_"):
        raise AttributeError(name)
    if run is None:
        raise AttributeError(f"wandb.{name}: call wandb.init() first")
    return getattr(run, name)


__all__ = ["Artifact", "Histogram", "Image", "Run", "Table", "finish", "init", "login", "setup"]
