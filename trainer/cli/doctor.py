"""`esper-daemon doctor`: what became of a run, or whether this machine is fit for one."""

from __future__ import annotations

import sys

import click
import msgspec

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.runs import find_run

from .options import JSON, RUN
from .output import print_json_text, print_lines
from .run_argument import RunArgument


@click.command()
@RUN
@JSON
def doctor(run: RunArgument, as_json: bool) -> None:
    """Diagnose RUN and advise what to do next; without RUN, check this machine."""
    run.run_remotely_if_addressed()
    if run.address is not None:
        from esper_overwatch.trainer.doctor.run import diagnose
        from esper_overwatch.trainer.doctor.run_text import diagnosis_lines

        found = diagnose(find_run(run.address))
        if as_json:
            print_json_text(msgspec.json.encode(found))
        else:
            print_lines(diagnosis_lines(found))
        return
    from esper_overwatch.trainer.doctor.machine import examine

    checks = examine()
    if as_json:
        print_json_text(msgspec.json.encode(checks))
    else:
        print_lines(line for check in checks for line in str(check).split("\n"))
    if any(check.status == "FAIL" for check in checks):
        sys.exit(FolderError.exit_code)
