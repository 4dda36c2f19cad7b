"""What is left of segments that retention has removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.journal.compactor import Compactor
from esper_overwatch.protocol.journal.reader import removed_boots
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.journal.writer import Journal, JournalLimits
from esper_overwatch.protocol.messages import events as ev
from tests.batches import batch_of
from tests.trainer.journals import started


def boots(path: Path) -> list[str]:
    """Kept events of how boots began: the boot, or the folder that it runs in."""
    part = removed_boots(path)
    events = [] if part is None else part.events(lambda *_: None)
    return [e.data.boot if isinstance(e.data, ev.RunStarted) else e.data.folder for e in events]


def test_retention_keeps_how_boots_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first events, and the newest of what they run, which is large; also where it was killed."""
    monkeypatch.setattr(Compactor, "wake", Compactor.work)
    path = tmp_path / "events.jsonl"
    journal = Journal(path, JournalLimits(segment_bytes=1 << 20))
    nothing: dict[str, Any] = {"command": [], "python": "", "executable": "", "packages": {}}
    for seq, boot in ((1, "a"), (3, "b"), (5, "c")):
        told = ev.RunProvenance(folder=f"folder of {boot}", environment={}, **nothing)
        journal.append([batch_of(seq, 1, ev.Context(), started(boot)[0])])
        journal.append([batch_of(seq + 1, 1, ev.Context(), told)])
        if boot != "a":
            journal.rotate()
    journal.close()
    with monkeypatch.context() as patch:
        patch.setattr(Compactor, "_unlink", lambda *_: None)  # as where it is killed before
        manifest = SegmentFolder(path).manifest_path.read_bytes()
        Journal(path, JournalLimits(keep_bytes=1)).close()
        assert boots(path) == ["a", "b", "c", "folder of c"]
        SegmentFolder(path).manifest_path.write_bytes(manifest)
    Journal(path, JournalLimits(keep_bytes=1)).close()
    assert boots(path) == ["a", "b", "c", "folder of c"]
