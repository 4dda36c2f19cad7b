"""The command line as it is typed, in this process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from esper_overwatch.trainer.cli.main import main


def esper(*words: object, **options: Any) -> Result:
    """`esper-daemon` with these words; `options` are those of `CliRunner.invoke`."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)
