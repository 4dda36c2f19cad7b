"""`esper-daemon`: start a run, and steer one from scripts.

Exit codes: 0 done; 1 the journal is damaged, and all that is whole was given; 2 wrong usage; 3 no such run,
or it does not answer; 4 refused (state, permission); 5 bad request; 6 too late; 7 accepted and failed; 8 the
name is taken; 9 bad configuration or dataset; 10 a folder, a socket path or a checkpoint cannot be used;
11 training failed; 12 the disk is full, read-only or sick; 130 interrupted; 141 nobody reads the output any
more.
"""

from __future__ import annotations

import os

import click

from esper_overwatch.protocol.version import __version__

from . import control, journal, runs, start
from .alerts import alerts
from .checkpoints import checkpoints
from .compare import compare
from .completion import completion
from .data import data
from .diff import diff
from .doctor import doctor
from .export import export
from .gateway import gateway
from .keys import keys
from .mcp import mcp
from .output import PROGRAM, ErrorGroup
from .policy import policy
from .query import query
from .queue import queue
from .stacks import stacks
from .sweep import sweep
from .tensorboard import tensorboard


@click.group(
    cls=ErrorGroup,
    epilog=(__doc__ or "").partition("\n\n")[2].replace("\n", " "),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name=PROGRAM)
def main() -> None:
    """Train growing networks in the background and steer the runs.

    RUN is a run's name or id, or the beginning of one; without it, the newest live run is meant. A run on
    another machine: --ssh USER@HOST[:RUN].
    """
    # Has torch ask Linux for huge pages; it is read with the first tensor, which an import may make.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


_OTHERS = (
    alerts,
    checkpoints,
    compare,
    data,
    diff,
    doctor,
    export,
    gateway,
    mcp,
    policy,
    query,
    queue,
    stacks,
    sweep,
    tensorboard,
    keys,
)
for _command in (*start.COMMANDS, *runs.COMMANDS, *control.COMMANDS, *journal.COMMANDS, *_OTHERS, completion):
    main.add_command(_command)
main.in_folder = frozenset(command.name for command in (*start.COMMANDS, *_OTHERS))
