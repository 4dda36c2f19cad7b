"""Screen, late viewer, run list, doctor, SQL, Prometheus and assistants tell the same incidents always."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.journal.overview import read_overview
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.trainer.doctor.run import diagnose
from esper_overwatch.trainer.mcp.reading import ReadingTools
from esper_overwatch.trainer.mcp.targets import Targets
from esper_overwatch.trainer.metrics.totals import RunTotals
from esper_overwatch.trainer.query.database import Database
from tests.overwatch_tui import journal

MOMENTS = 12


def screen_of(events: list[Event]) -> set[tuple[str, str]]:
    state = State()
    for event in events:
        state.fold(event)
    return {(record.key, record.data.severity) for record in state.incidents.open()}


def newest_of_each(events: list[Event]) -> list[Event]:
    """What a snapshot gives a viewer that joins late: the newest event of each incident."""
    kept = {event.data.id: event for event in events if isinstance(event.data, ev.Incident)}
    return [events[0], *sorted(kept.values(), key=lambda event: event.seq)]


def test_all_readers_of_a_storm_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path))
    lines = journal.Run().make()
    folder = RunFolder.claim("storm", home=tmp_path)
    folder.release()
    totals, seen, severities = RunTotals(), 0, set[str]()
    for number in range(1, MOMENTS + 1):
        until = len(lines) * number // MOMENTS
        told = [decode_line(line) for line in lines[:until]]
        folder.events.write_bytes(b"\n".join([*lines[:until], b""]))
        expected = screen_of(told)
        severities |= {severity for _, severity in expected}

        assert screen_of(newest_of_each(told)) == expected, "a viewer that joins late"
        for event in told[seen:]:
            item = Emitted(event.ts * 1000, event.data, event.ctx.env, event.ctx)
            totals.observe(ev.spec_of(type(event.data)), [item])
        seen = until
        assert {(id_, severity) for id_, (_, severity) in totals.open.items()} == expected, "Prometheus"
        overview = read_overview(folder.events, limit=10**9)
        assert overview is not None
        counts = [sum(severity == each for _, severity in expected) for each in ("critical", "warning")]
        assert [overview.critical, overview.warning] == counts, "the run list"
        found = diagnose(find_run("storm"))
        assert {(one.id, one.severity) for one in found.incidents} == expected, "doctor"
        with closing(Database(folder.events)) as database:
            rows = database.ask("SELECT id, severity FROM incidents WHERE open").rows
        assert set(map(tuple, rows)) == expected, "SQL"
        told_to_assistants = ReadingTools(Targets()).incidents("storm")["incidents"]
        assert {(row["id"], row["severity"]) for row in told_to_assistants} == expected, "assistants"
    assert severities == {"info", "warning", "critical"}
