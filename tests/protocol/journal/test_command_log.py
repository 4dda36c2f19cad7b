"""Command events, folded into records."""

from __future__ import annotations

from esper_overwatch.protocol.journal.command_log import CommandLog, CommandRecord
from esper_overwatch.protocol.messages import events as ev


def accepted(id_: str) -> ev.CommandAccepted:
    return ev.CommandAccepted(id=id_, method="pause", params={"a": 1}, client="c", uid=1, pid=2, reason="why")


def refused(id_: str) -> ev.CommandRefused:
    return ev.CommandRefused(id=id_, method="pause", code=-32005, message="too many", client="c")


def done(id_: str) -> ev.CommandDone:
    return ev.CommandDone(id=id_, method="pause", result={"x": 1}, seconds=0.5)


def failed(id_: str, kind: str = "internal") -> ev.CommandFailed:
    return ev.CommandFailed(id=id_, method="pause", kind=kind, message="disk full")


def fold(log: CommandLog, *events: object) -> list[CommandRecord | None]:
    return [log.fold(event, ts=ts) for ts, event in enumerate(events, start=1)]


def test_record_holds_command_from_acceptance_to_effect() -> None:
    log = CommandLog()
    progress = ev.CommandProgress(id="a", method="pause", done=1, total=3)
    changed = fold(log, accepted("a"), progress, ev.RoundStarted(rounds=1), done("a"))
    record = log.get("a")
    assert changed == [record, record, None, record]
    assert record == CommandRecord(
        1, "a", "pause", "done", "c", 1, 2, {"a": 1}, "why", 1, 1, 3, 4, 0.5, {"x": 1}, None
    )


def test_cancelled_command_is_not_failed_one() -> None:
    log = CommandLog()
    fold(log, accepted("a"), accepted("b"), failed("a"), failed("b", "cancelled"))
    assert [record.state for record in log.records()] == ["failed", "cancelled"]
    assert log.records()[0].error == {"kind": "internal", "message": "disk full"}


def test_refused_command_may_come_again_under_its_id() -> None:
    log = CommandLog()
    fold(log, refused("a"), accepted("b"), accepted("a"), refused("a"))
    again = log.get("a")
    assert again is not None
    assert (again.number, again.state, again.params, again.error) == (1, "waiting", {"a": 1}, None)


def test_end_without_beginning_counts_where_log_is_partial() -> None:
    assert fold(CommandLog(), done("a")) == [None]
    log = CommandLog(partial=True)
    (record, again) = fold(log, done("a"), done("a"))
    assert record is not None
    assert (record.state, record.client, record.params) == ("done", None, None)
    assert again is None


def test_oldest_ended_are_forgotten_and_open_never() -> None:
    log = CommandLog(max_ended=2)
    fold(log, accepted("open"), *(event for id_ in "abc" for event in (accepted(id_), done(id_))))
    assert [record.id for record in log.records()] == ["b", "c", "open"]
