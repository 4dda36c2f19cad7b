"""The server of a training: what `hello` says of it, its journal's limits, its commands, its alerts."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict

import msgspec

from esper_overwatch.protocol.alerts.alerts import Alerts
from esper_overwatch.protocol.alerts.rules import read_rules
from esper_overwatch.protocol.catalogue.disk_budget import keep_within
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.config.anomaly_options import configured_thresholds
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.control.run_control import RunControl

logger = logging.getLogger(__name__)


def free_disk_aside(config: Config) -> None:
    """Keep journals of ended runs within `journal.keep_share`, in a thread; a failure is logged."""
    share = config.journal.keep_share
    if not share:
        return

    def free() -> None:
        try:
            keep_within(share)
        except (OSError, EsperError) as error:
            logger.warning("journals of ended runs are not kept within their share: %s", error)

    threading.Thread(target=free, name="esper-disk-budget", daemon=True).start()


def open_server(
    run: RunFolder, config: Config, execution: Execution, emitter: Emitter, control: RunControl
) -> Server:
    """The server of a boot, not started yet; raises what `Server`, `Alerts` and `read_rules` do."""
    hello = {
        "task": config.task.label,
        "config": msgspec.to_builtins(config),
        "execution": execution.to_dict(),
        "thresholds": {signal: asdict(t) for signal, t in configured_thresholds(config.anomalies).items()},
    }
    limits = JournalLimits(
        segment_bytes=config.journal.segment_bytes,
        segment_seconds=config.journal.segment_seconds,
        keep_bytes=config.journal.keep_bytes,
    )
    server = Server(
        run,
        hello=hello,
        limits=limits,
        emitter=emitter,
        check=control.check,
        parameters=control.parameters.describe,
    )
    if rules := read_rules(config.alerts.file):
        Alerts(server, rules)
    return server
