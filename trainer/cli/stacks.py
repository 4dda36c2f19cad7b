"""`esper-daemon stacks`: what a live run is doing, by its threads' stacks."""

from __future__ import annotations

import click

from esper_overwatch.protocol.client.stack_profile import watch_stacks

from .options import RUN
from .output import print_lines
from .run_argument import RunArgument


@click.command()
@RUN
@click.option(
    "--seconds", type=click.FloatRange(0.0, 600.0), default=3.0, show_default=True, help="0 = one look."
)
@click.option("--folded", is_flag=True, help="A line for each stack, as flame graph tools read them.")
def stacks(run: RunArgument, seconds: float, folded: bool) -> None:
    """Show what a live run is doing: its threads' functions and their shares of the time.

    The run goes on meanwhile, and one that hangs answers, too. A native function shows as the line that calls
    it.
    """
    with run.connect() as client:
        profile = watch_stacks(client, seconds)
    print_lines(profile.folded() if folded else profile.tree())
