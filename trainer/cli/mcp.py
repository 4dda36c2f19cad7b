"""`esper-daemon mcp`: runs for assistants, over the Model Context Protocol."""

from __future__ import annotations

import os
import resource
import signal

import click

from esper_overwatch.protocol.errors import INTERRUPTED_EXIT

from .options import RUN
from .run_argument import RunArgument

MEMORY_BYTES = (4 << 30) + (os.cpu_count() or 1) * (32 << 20)
"""Of the process, whose libraries have a thread per core: DuckDB neither counts nor interrupts what a
function makes of nothing, as `repeat` does."""


@click.command()
@RUN
@click.option(
    "--allow-control", is_flag=True, help="Offer escalate, pause, resume, checkpoint and stop, too."
)
def mcp(run: RunArgument, allow_control: bool) -> None:
    """Serve runs to an assistant over standard input and output (Model Context Protocol).

    Without RUN all runs on this machine, with it that run only. A client starts this command itself;
    docs/how-to/assistants.md has its configuration.
    """
    run.run_remotely_if_addressed(asks=True)
    from esper_overwatch.trainer.mcp.server import serve
    from esper_overwatch.trainer.mcp.targets import Targets

    # A thread waits for standard input and cannot be woken: what is usual would wait for it.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED_EXIT))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES if hard < 0 else min(MEMORY_BYTES, hard), hard))
    serve(Targets(run.address), allow_control=allow_control)
