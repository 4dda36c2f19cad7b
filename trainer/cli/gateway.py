"""`esper-daemon gateway`: a run on TCP, for authorized keys, in a process beside it."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from types import FrameType

import click

from esper_overwatch.protocol.client.command_line import exit_on_error
from esper_overwatch.protocol.codec.addresses import require_local
from esper_overwatch.protocol.gateway import Gateway

from .options import RUN
from .output import PROGRAM, print_note
from .run_argument import RunArgument

logger = logging.getLogger(__name__)

MEMORY_BYTES = 512 * 1024 * 1024
"""Of the process that serves: libzmq and Python end it where a flood takes more, and another one follows."""
RESTART_SECONDS = 1.0
CRASHED = (1, 127)
"""Codes of a child that ended by what nobody expected: of Python, and of glibc where there is no memory."""
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command()
@RUN
@click.option(
    "--listen",
    "address",
    metavar="tcp://HOST:PORT",
    required=True,
    help="The first of three ports, for keys that are authorized (`esper-daemon keys`).",
)
def gateway(run: RunArgument, address: str) -> None:
    """Serve RUN over TCP, encrypted, to keys that are authorized.

    It ends with Ctrl-C or SIGTERM, not with the run, and serves the run's next boot as well; without RUN, the
    newest live run and those that follow it. Where it crashes, it starts again; the run does not notice.
    """
    require_local(run.address, "gateway")
    _serve_again_and_again(run.address, address)


def _serve_again_and_again(run: str | None, address: str) -> None:
    """Serve in a child process; one that crashes is followed by another.

    Raises:
        SystemExit: with the child's code, where it ended by itself.
    """
    child, is_ended = 0, False

    def end(number: int, _: FrameType | None) -> None:
        nonlocal is_ended
        is_ended = True
        if child:
            os.kill(child, number)

    for number in _END_SIGNALS:
        signal.signal(number, end)
    while not is_ended:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(_exit_code(run, address))
        _, status = os.waitpid(child, 0)
        child, code = 0, os.waitstatus_to_exitcode(status)
        if code >= 0 and code not in CRASHED:
            raise SystemExit(code)
        if not is_ended:
            why = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            print_note(f"the gateway {why}; it starts again")
            time.sleep(RESTART_SECONDS)


def _exit_code(run: str | None, address: str) -> int:
    """The child's whole life; what called this goes on in the parent alone."""
    try:
        with exit_on_error(PROGRAM):
            _serve(run, address)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else CRASHED[0]
    except Exception:
        logger.exception("the gateway failed")
        return CRASHED[0]
    return 0


def _serve(run: str | None, address: str) -> None:
    """Serve until a signal, or the parent's end."""
    parent, is_ended = os.getppid(), False

    def end(*_: object) -> None:
        nonlocal is_ended
        is_ended = True

    for number in _END_SIGNALS:
        signal.signal(number, end)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    server = Gateway(run, address)
    try:
        server.serve(lambda: is_ended or os.getppid() != parent)
    finally:
        server.close()
