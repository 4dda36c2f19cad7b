"""What `esper-daemon doctor` prints, and what it ends with."""

from __future__ import annotations

import msgspec

from protocol.errors import FolderError
from protocol.runs import find_run


def report_on(run: str | None, *, as_json: bool) -> tuple[str, int]:
    """(text, exit code): of a run where one is named, else of the machine.

    Raises:
        RunNotFound: no such run.
    """
    if run is not None:
        from .run import diagnose, in_words

        found = diagnose(find_run(run))
        return msgspec.json.encode(found).decode() if as_json else "\n".join(in_words(found)), 0
    from .machine import examine

    checks = examine()
    failed = any(check.status == "FAIL" for check in checks)
    text = msgspec.json.encode(checks).decode() if as_json else "\n".join(map(str, checks))
    return text, FolderError.exit_code if failed else 0
