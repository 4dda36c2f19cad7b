"""Commands that ask a live run, or change what it does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import click

from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.messages.vocabulary import ALPHA_SPEEDS, LEVELS, TEMPOS, Style

from .options import JSON, REQUIRED_RUN, RUN, WAIT
from .output import print_lines, print_result, print_table, request
from .run_argument import CommandAfterRun, RunArgument


@click.command()
@RUN
@JSON
def status(run: RunArgument, as_json: bool) -> None:
    """Show the state of a run."""
    with run.connect() as client:
        answer = client.status()
    print_result(answer if as_json else _status_for_people(answer), as_json)


_OF_TRAININGS = ("round", "epoch", "task", "envs", "rounds", "device", "level", "metrics")
"""Rows of `status` that say nothing about a published run."""


def _status_for_people(answer: dict[str, Any]) -> dict[str, Any]:
    """The rows that concern a run of its kind; of each registered command a line."""
    if answer.get("kind") != "published":
        return answer
    rows = {key: value for key, value in answer.items() if key not in _OF_TRAININGS}
    return {**rows, "commands": {name: _usage_of(of) for name, of in answer["commands"].items()}}


def _usage_of(command: dict[str, Any]) -> str:
    """Parameters and effect of a registered command: `tag=TEXT [every=10]: save the weights`."""
    words = []
    for key, of in command["parameters"].items():
        if "default" in of:
            words.append(f"[{key}={json.dumps(of['default'])}]")
        else:
            words.append(f"{key}={'TEXT' if of['type'] == 'str' else of['type'].upper()}")
    return ": ".join(part for part in (" ".join(words), command["help"]) if part)


@click.command()
@RUN
@WAIT
@JSON
def pause(run: RunArgument, wait: bool, as_json: bool) -> None:
    """Pause the training at the end of this epoch."""
    request(lambda client: client.pause(wait=wait), run, as_json)


@click.command()
@RUN
@WAIT
@JSON
def resume(run: RunArgument, wait: bool, as_json: bool) -> None:
    """Resume a paused training."""
    request(lambda client: client.resume(wait=wait), run, as_json)


@click.command()
@RUN
@click.option("--tag", default="", help="Part of the file's name.")
@WAIT
@JSON
def checkpoint(run: RunArgument, tag: str, wait: bool, as_json: bool) -> None:
    """Save a checkpoint at the end of this epoch."""
    request(lambda client: client.checkpoint(tag=tag, wait=wait), run, as_json)


@click.command()
@RUN
@click.option("--after-round", is_flag=True, help="Finish the round first.")
@click.option("--no-checkpoint", is_flag=True, help="Do not save a checkpoint.")
@WAIT
@JSON
def stop(run: RunArgument, after_round: bool, no_checkpoint: bool, wait: bool, as_json: bool) -> None:
    """Stop a run at the end of this epoch, with a checkpoint."""
    mode = "after_round" if after_round else "after_epoch"
    request(lambda client: client.stop(mode=mode, checkpoint=not no_checkpoint, wait=wait), run, as_json)


@click.command()
@RUN
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), default="DEBUG", show_default=True)
@click.option("--epochs", type=int, default=5, show_default=True, help="Epochs that the level holds.")
@click.option("--env", type=int, help="Escalate this env only.")
@WAIT
@JSON
def escalate(run: RunArgument, level: Any, epochs: int, env: int | None, wait: bool, as_json: bool) -> None:
    """Collect more telemetry for some epochs."""
    request(lambda c: c.escalate(level=level, epochs=epochs, env=env, wait=wait), run, as_json)


@click.command()
@RUN
@click.option("--epochs", type=int, default=2, show_default=True, help="Epochs to record.")
@click.option("--with-update", is_flag=True, help="Wait for a round's end and record its PPO update, too.")
@WAIT
@JSON
def profile(run: RunArgument, epochs: int, with_update: bool, wait: bool, as_json: bool) -> None:
    """Record a profile; prints the path of the trace and the slowest operators."""
    request(lambda c: c.profile(epochs=epochs, with_update=with_update, wait=wait), run, as_json)


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("what", required=False, metavar="[KEY[=VALUE]]")
@WAIT
@JSON
def param(run: RunArgument, what: str | None, wait: bool, as_json: bool) -> None:
    """Show the parameters that can change while RUN trains, or set one: `ppo.learning_rate=3e-4`."""
    key, equals, text = (what or "").partition("=")
    if equals:
        try:
            value = float(text)
        except ValueError:
            raise click.UsageError(f"{text!r} is not a number; write KEY=VALUE") from None
        request(lambda client: client.set_param(key.strip(), value, wait=wait), run, as_json)
        return
    with run.connect() as client:
        params = client.params()
    if key and key not in params:
        raise click.UsageError(clean_text(f"{key!r} cannot be changed; these can: {', '.join(params)}"))
    rows = [{"key": k, **fields} for k, fields in params.items() if not key or k == key]
    columns = {"key": 24, "value": 10, "configured": 10, "takes_effect": 12, "allowed": 24, "description": 0}
    print_table(rows, columns, as_json)


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("method")
@click.argument("parameters", nargs=-1, metavar="[KEY=VALUE]...")
@WAIT
@JSON
def call(run: RunArgument, method: str, parameters: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Send any METHOD to RUN, such as a command that the loop of a published run has registered.

    `esper-daemon call my-run save tag=best every=5`; without a method that it knows, the run names those
    that it has. Values are numbers, true, false or text.
    """
    with run.connect() as client:
        hello = client.hello()
        params = _parameters(parameters, _types_of(hello.get("commands", {}).get(method)))
        known = hello["methods"].get(method)
        if known is not None and known["socket"] == "qry":
            print_result(client.call(method, params), as_json)
        else:
            print_result(client.command(method, params, wait), as_json)


def _types_of(command: dict[str, Any] | None) -> dict[str, str]:
    """Names of a registered command's parameter types, by parameter."""
    return {key: of["type"] for key, of in command["parameters"].items()} if command else {}


def _parameters(words: Sequence[str], types: dict[str, str]) -> dict[str, Any]:
    """`KEY=VALUE` as parameters: text where the type says so, else JSON, else text."""
    params: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.UsageError(clean_text(f"{word!r} is not a parameter; write KEY=VALUE"))
        params[key] = text
        if types.get(key) != "str":
            with contextlib.suppress(ValueError):
                params[key] = json.loads(text)
    return params


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("text")
@JSON
def mark(run: RunArgument, text: str, as_json: bool) -> None:
    """Note TEXT on the timeline of RUN."""
    request(lambda client: client.mark(text), run, as_json)


@click.group()
def seed() -> None:
    """Germinate or prune one seed, through the gates that bind the policy."""


_ENV = click.option("--env", type=click.IntRange(min=0), required=True, help="Index of the env.")
_SLOT = click.option("--slot", required=True, help="Name of the slot, such as r0c1.")


@seed.command(cls=CommandAfterRun)
@REQUIRED_RUN
@_ENV
@_SLOT
@click.option("--blueprint", required=True, help="Blueprint of the seed; the TUI shows those of the run.")
@click.option("--style", type=click.Choice([s.name for s in Style]), default="ADD", show_default=True)
@click.option(
    "--tempo",
    type=click.Choice([str(t) for t in TEMPOS]),
    default="5",
    show_default=True,
    help="Epochs of the blend that follows its training.",
)
@WAIT
@JSON
def germinate(
    run: RunArgument, env: int, slot: str, blueprint: str, style: str, tempo: str, wait: bool, as_json: bool
) -> None:
    """Germinate a seed in a dormant slot."""
    request(
        lambda c: c.germinate(env, slot, blueprint, style=style, tempo=int(tempo), wait=wait), run, as_json
    )


@seed.command(cls=CommandAfterRun)
@REQUIRED_RUN
@_ENV
@_SLOT
@click.option(
    "--epochs",
    type=click.Choice([str(e) for e in ALPHA_SPEEDS]),
    default="0",
    show_default=True,
    help="Epochs over which a blended seed fades; 0 = at once.",
)
@WAIT
@JSON
def prune(run: RunArgument, env: int, slot: str, epochs: str, wait: bool, as_json: bool) -> None:
    """Remove a seed that is not fossilized."""
    request(lambda c: c.prune(env, slot, epochs=int(epochs), wait=wait), run, as_json)


@click.command()
@RUN
@JSON
def ops(run: RunArgument, as_json: bool) -> None:
    """List the commands of a run: open ones and the newest ended ones."""
    with run.connect() as client:
        rows = [
            {**op, "progress": f"{op['done']}/{op['total']}" if op["total"] else None} for op in client.ops()
        ]
    print_table(rows, {"op": 16, "method": 18, "state": 9, "progress": 9, "client": 24, "pid": 8}, as_json)


@click.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.argument("op")
@WAIT
@JSON
def cancel(run: RunArgument, op: str, wait: bool, as_json: bool) -> None:
    """Cancel a command of RUN that has not ended; `ops` lists them."""
    request(lambda client: client.cancel(op, wait=wait), run, as_json)


@click.command()
@RUN
@JSON
def clients(run: RunArgument, as_json: bool) -> None:
    """List the clients that have sent requests to a run lately."""
    with run.connect() as client:
        rows = client.clients()
    now = max(row["last"] for row in rows)  # by the run's clock: of who asks
    for row in rows:
        row["idle_s"] = round((now - row["last"]) / 1e6, 1)
    columns = {
        "client": 24,
        "uid": 6,
        "pid": 8,
        "key": 12,
        "role": 8,
        "idle_s": 7,
        "requests": 9,
        "refused": 8,
        "connections": 0,
    }
    print_table(rows, columns, as_json)


@click.command()
@RUN
@JSON
def rotate(run: RunArgument, as_json: bool) -> None:
    """Close the journal's segment now; it is compressed in the background."""
    request(Client.rotate, run, as_json)


@click.group()
def lease() -> None:
    """Let a run take commands of the holder of a lease only, for some time.

    `export ESPER_LEASE=$(esper-daemon lease acquire RUN)`: clients with the lease in this variable may send
    commands. It ends automatically.
    """


@lease.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.option("--ttl", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Seconds.")
@click.option("--note", default="", help="Purpose; shown to clients that are refused.")
@JSON
def acquire(run: RunArgument, ttl: float, note: str, as_json: bool) -> None:
    """Take the lease, or lengthen the one in ESPER_LEASE; prints it."""
    with run.connect() as client:
        answer = client.acquire_lease(ttl, note)
    if as_json:
        print_result(answer, as_json)
        return
    print_lines([answer["lease"]])


@lease.command(cls=CommandAfterRun)
@REQUIRED_RUN
@click.option("--force", is_flag=True, help="End the lease of another client.")
@JSON
def release(run: RunArgument, force: bool, as_json: bool) -> None:
    """End the lease: all clients may send commands again."""
    request(lambda client: client.release_lease(force=force), run, as_json)


COMMANDS: tuple[click.Command, ...] = (
    status,
    pause,
    resume,
    checkpoint,
    stop,
    escalate,
    profile,
    param,
    call,
    mark,
    seed,
    ops,
    cancel,
    clients,
    rotate,
    lease,
)
