"""`esper-daemon checkpoints` as typed."""

from __future__ import annotations

import json

from esper_overwatch.protocol.runs import RunFolder
from tests.trainer.command import esper


def test_deleting_prints_json_where_asked() -> None:
    run = RunFolder.claim("alpha")
    run.release()
    run.checkpoints.mkdir(exist_ok=True)
    for number, options in ((1, []), (2, ["--json"])):
        file = run.checkpoints / f"round-00000{number}.pt"
        file.write_bytes(b"")
        done = esper("checkpoints", "alpha", "--delete", file.name, *options)
        assert done.exit_code == 0, done.stderr
        assert not file.exists()
        assert (json.loads(done.stdout) if options else done.stdout) == (
            {"deleted": str(file)} if options else f"deleted {file}\n"
        )
