"""Subcommands of `esper-daemon` that change what a run does beyond its start and stop.

Where another argument follows, RUN is needed; one on another machine is `ssh://user@host/run`.
"""

from __future__ import annotations

import time
from typing import Any

import click

from protocol import connect
from protocol.client import Client

from .asking import JSON, RUN, WAIT, ask, show, table
from .seeds.stages import ALPHA_SPEEDS, TEMPOS, Style

_NEEDED = click.argument("run")


@click.command()
@_NEEDED
@click.argument("what", required=False, metavar="[KEY[=VALUE]]")
@WAIT
@JSON
def param(run: str, what: str | None, wait: bool, as_json: bool) -> None:
    """Show what may be changed while RUN trains, or change it: `param RUN ppo.learning_rate=3e-4`."""
    key, equals, text = (what or "").partition("=")
    if equals:
        try:
            value = float(text)
        except ValueError:
            raise click.UsageError(f"{text!r} is no number; write KEY=VALUE") from None
        ask(lambda client: client.set_param(key.strip(), value, wait=wait), run, as_json)
        return
    with connect(run) as client:
        params = client.params()
    if key and key not in params:
        raise click.UsageError(f"{key!r} cannot be changed; these can: {', '.join(params)}")
    rows = [{"key": k, **told} for k, told in params.items() if not key or k == key]
    columns = {"key": 24, "value": 10, "configured": 10, "takes_effect": 12, "allowed": 24, "description": 0}
    table(rows, columns, as_json)


@click.command()
@_NEEDED
@click.argument("text")
@JSON
def mark(run: str, text: str, as_json: bool) -> None:
    """Note TEXT on the timeline of RUN."""
    ask(lambda client: client.mark(text), run, as_json)


@click.group()
def seed() -> None:
    """Plant or prune one seed, through the gates that bind the policy."""


_ENV = click.option("--env", type=click.IntRange(min=0), required=True, help="Which env.")
_SLOT = click.option("--slot", required=True, help="Name of the slot, such as r0c1.")


@seed.command()
@_NEEDED
@_ENV
@_SLOT
@click.option("--blueprint", required=True, help="Kind of seed; `status` and the TUI show the run's.")
@click.option("--style", type=click.Choice([s.name for s in Style]), default="ADD", show_default=True)
@click.option("--tempo", type=click.Choice([str(t) for t in TEMPOS]), default="5", show_default=True,
              help="Epochs of the blend after its training.")  # fmt: skip
@WAIT
@JSON
def germinate(
    run: str, env: int, slot: str, blueprint: str, style: str, tempo: str, wait: bool, as_json: bool
) -> None:
    """Plant a seed in a dormant slot."""
    ask(lambda c: c.germinate(env, slot, blueprint, style=style, tempo=int(tempo), wait=wait), run, as_json)


@seed.command()
@_NEEDED
@_ENV
@_SLOT
@click.option("--epochs", type=click.Choice([str(e) for e in ALPHA_SPEEDS]), default="0", show_default=True,
              help="Let a blended seed fade over so many epochs.")  # fmt: skip
@WAIT
@JSON
def prune(run: str, env: int, slot: str, epochs: str, wait: bool, as_json: bool) -> None:
    """Remove a seed that is not fossilized."""
    ask(lambda c: c.prune(env, slot, epochs=int(epochs), wait=wait), run, as_json)


@click.command()
@RUN
@JSON
def ops(run: str | None, as_json: bool) -> None:
    """List the commands of a run: open ones and the newest ended ones."""
    with connect(run) as client:
        rows = [{**op, "progress": _progress(op)} for op in client.ops()]
    table(rows, {"op": 16, "method": 18, "state": 9, "progress": 9, "client": 24, "pid": 8}, as_json)


def _progress(op: dict[str, Any]) -> str | None:
    return f"{op['done']}/{op['total']}" if op["total"] else None


@click.command()
@_NEEDED
@click.argument("op")
@WAIT
@JSON
def cancel(run: str, op: str, wait: bool, as_json: bool) -> None:
    """Cancel a command of RUN that has not ended; `ops` lists them."""
    ask(lambda client: client.cancel(op, wait=wait), run, as_json)


@click.command()
@RUN
@JSON
def clients(run: str | None, as_json: bool) -> None:
    """List who has asked a run lately."""
    with connect(run) as client:
        rows = client.clients()
    now = time.time()
    for row in rows:
        row["idle_s"] = round(max(0.0, now - row["last"] / 1e6), 1)
    columns = {
        "client": 24, "uid": 6, "pid": 8, "key": 12, "role": 8, "idle_s": 7, "requests": 9, "refused": 8,
        "connections": 0,
    }  # fmt: skip
    table(rows, columns, as_json)


@click.command()
@RUN
@JSON
def rotate(run: str | None, as_json: bool) -> None:
    """Close the journal's segment now; it is compressed in the background."""
    ask(Client.rotate, run, as_json)


@click.group()
def lease() -> None:
    """Be the only one whose commands a run takes, for a while.

    `export ESPER_LEASE=$(esper-daemon lease acquire RUN)`: whoever has it in this variable may command. It
    ends by itself.
    """


@lease.command()
@_NEEDED
@click.option("--ttl", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Seconds.")
@click.option("--note", default="", help="What for; told to who is refused.")
@JSON
def acquire(run: str, ttl: float, note: str, as_json: bool) -> None:
    """Take the lease, or lengthen the one in ESPER_LEASE; prints it."""
    with connect(run) as client:
        told = client.acquire_lease(ttl, note)
    if as_json:
        show(told, as_json)
        return
    click.echo(told["lease"])


@lease.command()
@_NEEDED
@click.option("--force", is_flag=True, help="End it although it is another's.")
@JSON
def release(run: str, force: bool, as_json: bool) -> None:
    """Let everybody command again."""
    ask(lambda client: client.release_lease(force=force), run, as_json)


COMMANDS: tuple[click.Command, ...] = (param, mark, seed, ops, cancel, clients, rotate, lease)
