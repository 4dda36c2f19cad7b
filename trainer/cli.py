"""`esper-daemon`: start a run, and steer one from scripts.

Exit codes: 0 done; 2 wrong usage; 3 no such run, or it does not answer; 4 refused (state, permission);
5 bad request; 6 too late; 7 accepted and failed; 8 the name is taken; 9 bad configuration or dataset; 10 a
folder, a socket path or a checkpoint cannot be used; 11 training failed; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from protocol import connect
from protocol.errors import EsperError
from protocol.events import LEVELS, STREAMS
from protocol.history import Wanted
from protocol.runs import RunInfo, check_name, list_runs, was_trained
from protocol.target import local_only
from protocol.version import __version__

from . import presets, settings, steering
from .addressing import list_there, there
from .asking import JSON, RUN, WAIT, ask, show
from .authorizing import keys
from .export.command import FORMATS, export_run


class _Group(click.Group):
    """Errors become one line and an exit code, here and nowhere else."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EsperError as error:
            click.echo(f"esper-daemon: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Group, epilog=(__doc__ or "").partition("\n\n")[2].replace("\n", " "))
@click.version_option(__version__, prog_name="esper-daemon")
def main() -> None:
    """Train growing networks in the background and steer the runs.

    RUN is a run's name or id, or the beginning of one; without it, the newest live run is meant. A run on
    another machine: --ssh USER@HOST[:RUN].
    """


for _steering in steering.COMMANDS:
    main.add_command(_steering)


@main.command()
@click.argument("name", required=False)
@click.option("--resume", metavar="NAME", help="Go on with a run from its newest checkpoint.")
@click.option("--preset", metavar="NAME", help="Options from a preset; `presets` lists them.")
@click.option("--or-resume", is_flag=True, help="Go on with NAME where it has been trained before.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Options from a TOML file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One option; see `options`.")
@click.option("--rounds", metavar="N", help="Stop after so many rounds (short for --set rounds=N).")
@click.option("--seed", metavar="N", help="Seed of everything random (short for --set seed=N).")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (short for --set device=…).")
@click.option("--profile", metavar="N", help="Record the end of the Nth round (--set profiler.rounds=N).")
@click.option("--detach", is_flag=True, help="Go on in the background; return once the run is ready.")
def start(
    name: str | None,
    resume: str | None,
    preset: str | None,
    or_resume: bool,
    file: Path | None,
    sets: tuple[str, ...],
    rounds: str | None,
    seed: str | None,
    device: str | None,
    profile: str | None,
    detach: bool,
) -> None:
    """Train; NAME is the run's name (made up where it is missing)."""
    if name and resume:
        raise click.UsageError("give a NAME for a new run or --resume NAME, not both")
    if or_resume:
        if name is None:
            raise click.UsageError("--or-resume needs the run's NAME")
        if was_trained(name):
            name, resume = None, name
    short = {"rounds": rounds, "seed": seed, "device": device, "profiler.rounds": profile}
    sets += tuple(f"{key}={value}" for key, value in short.items() if value is not None)
    if detach:
        from .detach import start_detached

        settings.load(preset=preset, file=file, environ=os.environ, sets=sets)
        arguments = [word for word in sys.argv[1:] if word != "--detach"]
        sys.exit(start_detached(arguments))
    from .daemon import run_daemon

    sys.exit(run_daemon(name=name, resume=resume, preset=preset, file=file, sets=sets))


@main.command()
@click.argument("name")
@click.option("--preset", metavar="NAME", help="As of `start`.")
@click.option("--config", "file", type=click.Path(path_type=Path, resolve_path=True), help="As of `start`.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="As of `start`.")
def systemd(name: str, preset: str | None, file: Path | None, sets: tuple[str, ...]) -> None:
    """Print a systemd user unit for the run NAME, which goes on with it after a crash or a reboot."""
    from .systemd import unit

    check_name(name)
    settings.load(preset=preset, file=file, environ=os.environ, sets=sets)
    given = [("--preset", preset), ("--config", file), *(("--set", one) for one in sets)]
    words = [word for option, value in given if value is not None for word in (option, str(value))]
    click.echo(unit(name, words), nl=False)


@main.command("list")
@click.option("--all", "everything", is_flag=True, help="Ended runs, too.")
@click.option("--ssh", metavar="USER@HOST", help="Of another machine, through OpenSSH.")
@JSON
def list_command(everything: bool, ssh: str | None, as_json: bool) -> None:
    """List the runs on this machine."""
    if ssh is not None:
        list_there(ssh, everything=everything, as_json=as_json)
    runs = [run for run in list_runs() if everything or run.live]
    if as_json:
        click.echo(json.dumps([_row(run) for run in runs]))
        return
    if not runs:
        click.echo("no live run; start one with: esper-daemon start --detach")
        return
    for run in runs:
        life = "live" if run.live else "ended"
        click.echo(f"{run.id}  {run.name:<24} {life:<6} {run.state or '--':<10} pid {run.pid or '--'}")


def _row(run: RunInfo) -> dict[str, Any]:
    return {
        "name": run.name, "id": run.id, "live": run.live, "state": run.state, "pid": run.pid,
        "path": str(run.path), "boot": run.connection and run.connection.boot,
        "endpoints": run.connection and run.connection.endpoints,
    }  # fmt: skip


@main.command()
@RUN
@JSON
def status(run: str | None, as_json: bool) -> None:
    """Ask a run how it is."""
    with connect(run) as client:
        show(client.status(), as_json)


@main.command()
@RUN
@WAIT
@JSON
def pause(run: str | None, wait: bool, as_json: bool) -> None:
    """Hold the training at the end of this epoch."""
    ask(lambda client: client.pause(wait=wait), run, as_json)


@main.command()
@RUN
@WAIT
@JSON
def resume(run: str | None, wait: bool, as_json: bool) -> None:
    """Let a paused training go on."""
    ask(lambda client: client.resume(wait=wait), run, as_json)


@main.command()
@RUN
@click.option("--tag", default="", help="Part of the file's name.")
@WAIT
@JSON
def checkpoint(run: str | None, tag: str, wait: bool, as_json: bool) -> None:
    """Save a checkpoint at the end of this epoch."""
    ask(lambda client: client.checkpoint(tag=tag, wait=wait), run, as_json)


@main.command()
@RUN
@click.option("--after-round", is_flag=True, help="Finish the round first.")
@click.option("--no-checkpoint", is_flag=True, help="Do not save a checkpoint.")
@WAIT
@JSON
def stop(run: str | None, after_round: bool, no_checkpoint: bool, wait: bool, as_json: bool) -> None:
    """End a run in order, with a checkpoint."""
    mode = "after_round" if after_round else "after_epoch"
    ask(lambda client: client.stop(mode=mode, checkpoint=not no_checkpoint, wait=wait), run, as_json)


@main.command()
@RUN
@click.option("--level", type=click.Choice(LEVELS), default="DEBUG", show_default=True)
@click.option("--epochs", type=int, default=5, show_default=True, help="For exactly so many epochs.")
@click.option("--env", type=int, help="Only this env.")
@WAIT
@JSON
def escalate(run: str | None, level: Any, epochs: int, env: int | None, wait: bool, as_json: bool) -> None:
    """Raise what is collected for some epochs."""
    ask(lambda c: c.escalate(level=level, epochs=epochs, env=env, wait=wait), run, as_json)


@main.command()
@RUN
@click.option("--epochs", type=int, default=2, show_default=True, help="Epochs to record.")
@click.option("--with-update", is_flag=True, help="Wait for a round's end and record its PPO update, too.")
@WAIT
@JSON
def profile(run: str | None, epochs: int, with_update: bool, wait: bool, as_json: bool) -> None:
    """Record a profile; says where the trace is and what took longest."""
    ask(lambda c: c.profile(epochs=epochs, with_update=with_update, wait=wait), run, as_json)


@main.command()
@RUN
@click.option("-f", "--follow", is_flag=True, help="Go on as events come in.")
@click.option("-n", "--lines", type=int, default=20, show_default=True, help="How many to begin with.")
@click.option("--type", "types", multiple=True, help="Only these event types.")
@JSON
def tail(run: str | None, follow: bool, lines: int, types: tuple[str, ...], as_json: bool) -> None:
    """Print a run's events, also of one that has ended."""
    from .tailing import tail_run

    there(run, asks=True)
    tail_run(run, follow=follow, lines=lines, types=types, as_json=as_json)


@main.command()
@RUN
@click.option("--stream", type=click.Choice(STREAMS), help="Only this stream.")
@click.option("--first", type=click.IntRange(min=1), help="From this number on (with --stream).")
@click.option("--last", type=click.IntRange(min=1), help="Up to this number (with --stream).")
@click.option("--type", "types", multiple=True, help="Only these event types.")
@JSON
def replay(
    run: str | None,
    stream: str | None,
    first: int | None,
    last: int | None,
    types: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print a range of a run's events, from all segments of its journal."""
    from .replaying import replay_run

    if stream is None and (first is not None or last is not None):
        raise click.UsageError("--first and --last are numbers of one stream; give --stream, too")
    there(run, asks=True)
    replay_run(run, Wanted(stream, first or 1, last), types, as_json=as_json)


@main.command()
@RUN
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Into this folder.",
)
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True)
@JSON
def export(run: str | None, folder: Path, format_: str, as_json: bool) -> None:
    """Write a run's events as Parquet files or TensorBoard scalars; the run may be live."""
    local_only(run, "export")
    show(export_run(run, folder, format_), as_json)


@main.command()
@click.option("--preset", metavar="NAME", help="Options from a preset; `presets` lists them.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Options from a TOML file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One option.")
@click.option("--toml", "as_toml", is_flag=True, help="Print the merged configuration as TOML.")
def options(preset: str | None, file: Path | None, sets: tuple[str, ...], as_toml: bool) -> None:
    """Every option of `start`: key, value, what is allowed, what it is for."""
    config = settings.load(preset=preset, file=file, environ=os.environ, sets=sets)
    if as_toml:
        click.echo(settings.to_toml(config), nl=False)
        return
    for option in settings.OPTIONS.values():
        value: Any = config
        for part in option.key.split("."):
            value = getattr(value, part)
        click.echo(f"{option.key} = {value}\n    {option.description} ({option.allowed}; {option.variable})")


@main.command("presets")
@JSON
def presets_command(as_json: bool) -> None:
    """List the presets of `start --preset` and what each is for."""
    lines = presets.presets()
    if as_json:
        click.echo(json.dumps(lines))
        return
    for name, line in lines.items():
        click.echo(f"{name:<16} {line}")


@main.command()
@click.argument("name", required=False)
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), help="Register this text or folder of files as NAME."
)
@JSON
def data(name: str | None, folder: Path | None, as_json: bool) -> None:
    """List the datasets; with NAME, read that one and say what it holds.

    With --from, its files are IDX (as MNIST's), the batches of CIFAR-10 or CIFAR-100, binary or Python, or
    any text in UTF-8.
    """
    from .data import command

    if name is None and folder is not None:
        raise click.UsageError("--from needs a NAME for the dataset")
    if name is None:
        rows = command.listed()
        click.echo(json.dumps(rows) if as_json else command.as_text(rows))
        return
    show(command.checked(name) if folder is None else command.registered(name, folder), as_json)


@main.command()
@RUN
@JSON
def doctor(run: str | None, as_json: bool) -> None:
    """Say what became of RUN and what to do next; without RUN, check this machine."""
    from .doctor.command import report_on

    there(run)
    text, code = report_on(run, as_json=as_json)
    click.echo(text)
    sys.exit(code)


@main.command()
@RUN
@click.argument("sql", required=False)
@click.option("--tables", is_flag=True, help="List the views and their columns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@JSON
def query(run: str | None, sql: str | None, tables: bool, as_csv: bool, as_json: bool) -> None:
    """Ask the journal of RUN in SQL (DuckDB); it may be live."""
    from .query import command

    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    there(run)
    form: command.Format = "csv" if as_csv else "json" if as_json else "table"
    if tables and sql is None:
        click.echo(command.tables(run, form))
    elif run is not None and sql is not None and not tables:
        click.echo(command.answer(run, sql, form))
    else:
        raise click.UsageError('give RUN and "SQL", or --tables')


main.add_command(keys)
