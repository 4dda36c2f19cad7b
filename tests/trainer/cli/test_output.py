"""What commands print never steers a terminal, whoever's words are in it."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_overwatch import connect
from esper_overwatch.overwatch_tui import cli as terminal
from esper_overwatch.overwatch_tui.settings.table import SETTINGS
from esper_overwatch.protocol.client.command_line import exit_on_error
from esper_overwatch.protocol.codec.json_lines import decode_line, encode_event
from esper_overwatch.protocol.errors import EsperError, RequestError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.cli import journal, output, tables
from esper_overwatch.trainer.daemon.logging_setup import LineFormatter
from esper_overwatch.trainer.doctor.run import Diagnosis
from esper_overwatch.trainer.doctor.run_text import diagnosis_lines
from tests.protocol.codec.test_text import HOSTILE
from tests.trainer.command import esper
from tests.trainer.journals import at, epoch, started, write_run

FOLDER = Path(output.__file__).parent


def mark(text: str) -> bytes:
    return encode_event(1, 0, Context(), ev.Mark(text=text, client=text, uid=None, pid=None))


def fail(text: str) -> None:
    with exit_on_error("esper-daemon"):
        raise EsperError(text)


def diagnosis(text: str) -> Diagnosis:
    return Diagnosis(run=text, id="id", ending="failed", reason=text, error=text, advice=[text], bundle=text)


def nested(text: str) -> dict[str, Any]:
    """With words beside the text, so that what is nested has lines of its own whatever the text is."""
    return {"text": text, "list": [f"{text} x"], f"of {text}": {"a": f"{text} x"}}


PATHS: dict[str, Callable[[str], object]] = {
    "line": lambda text: output.print_lines([text]),
    "colour": lambda text: output.print_lines([text], colour="red"),
    "note": lambda text: output.print_note(text),
    "result": lambda text: output.print_result(nested(text), False),
    "result as JSON": lambda text: output.print_result({"text": text, text: 1}, True),
    "table": lambda text: output.print_table([{"client": text, "n": 1}], {"client": 4, "n": 0}, False),
    "table as JSON": lambda text: output.print_table([{"client": text}], {"client": 4}, True),
    "query": lambda text: output.print_lines(tables.table_lines(["x"], [(text,)])),
    "CSV": lambda text: output.print_lines(tables.csv_lines(["x", text], [(text, 1)])),
    "event": lambda text: journal._print_event(decode_line(mark(text)), as_json=False),
    "event as JSON": lambda text: journal._print_event(decode_line(mark(text)), as_json=True),
    "doctor": lambda text: output.print_lines(diagnosis_lines(diagnosis(text))),
    "error": fail,
}


@pytest.mark.parametrize("path", PATHS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_no_printing_path_lets_control_characters_through(path: str, text: str) -> None:
    printed = [_printed(PATHS[path], t) for t in (text, HOSTILE)]
    plain = _printed(PATHS[path], "x")
    for out in printed:
        assert all(line.isprintable() for line in out.split("\n"))
        assert out.count("\n") == plain.count("\n"), "no row is forged"


def _printed(call: Callable[[str], object], text: str) -> str:
    result = CliRunner().invoke(click.Command("x", callback=lambda: call(text)))
    assert result.exit_code == 0 or isinstance(result.exception, SystemExit), result.exception
    return result.stdout + result.stderr


@given(st.text())
def test_a_log_record_forges_no_other(text: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "client %s", (text,), None)
    first, *others = LineFormatter().format(record).split("\n")
    assert all(line.isprintable() and line.startswith("    ") for line in others)
    assert first.isprintable()


def test_only_one_module_of_the_command_line_prints() -> None:
    printing = {"click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write"}
    for path in FOLDER.glob("*.py"):
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in printing, f"{path.name}:{node.lineno}"


@pytest.fixture
def hostile_run(short_home: Path) -> Iterator[Server]:
    """A run that a client of a hostile name has asked, with and without success."""
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    server.set_state("TRAINING")
    with connect("alpha", client=HOSTILE) as client:
        client.mark(HOSTILE)
        client.pause(wait=False, reason=HOSTILE)
        with pytest.raises(RequestError):
            client.prune(0, HOSTILE, epochs=99, wait=False)
    assert server.flush(60.0)
    yield server
    server.close()
    server.run.release()


@pytest.mark.parametrize(
    "words",
    [
        ("clients", "alpha"),
        ("tail", "alpha"),
        ("tail", "alpha", "--json"),
        ("replay", "alpha"),
        ("ops", "alpha"),
        ("query", "alpha", "SELECT * FROM commands"),
        ("query", "alpha", "SELECT * FROM commands", "--csv"),
        ("status", "alpha"),
        ("mark", "alpha", HOSTILE.replace("\udc9b", "")),
    ],
)
def test_a_hostile_client_reaches_no_terminal(hostile_run: Server, words: tuple[str, ...]) -> None:
    assert hostile_run.run.name == "alpha"
    result = esper(*words, color=True)
    assert result.exit_code == 0, result.output
    assert result.output
    assert all(line.isprintable() for line in result.output.split("\n"))
    assert not any(line.startswith("root") for line in result.output.split("\n")), "a row was forged"


@pytest.mark.parametrize("view", SETTINGS["view"].choices)
def test_a_hostile_mark_reaches_no_screen(tmp_path: Path, view: str) -> None:
    told = [started("b"), epoch(1, 1), (ev.Mark(text=HOSTILE, client=HOSTILE, uid=None, pid=None), at(1, 1))]
    run = write_run(tmp_path, "alpha", told)
    run.release()
    words = ["--once", "--view", view, "--replay", str(run.events)]
    result = CliRunner().invoke(terminal.main, words, color=True)
    assert result.exit_code == 0, result.output
    assert all(line.isprintable() for line in result.output.split("\n"))


def test_escalate_takes_a_level_in_lower_case(hostile_run: Server) -> None:
    result = esper("escalate", "alpha", "--level", "debug", "--no-wait")
    assert result.exit_code == 0, result.output
    assert hostile_run.mailbox.poll()[-1].params.level == "DEBUG"
