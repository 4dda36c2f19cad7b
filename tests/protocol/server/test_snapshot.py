from __future__ import annotations

import pytest

from esper_overwatch.protocol.codec.json_lines import Encoder, decode_line
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.snapshot import Snapshot


class Log:
    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.encoder = Encoder(dict.fromkeys(STREAMS, 0))

    def add(self, *events: object, env: int | None = None) -> None:
        """Events of one type, which come together."""
        spec = ev.spec_of(type(events[0]))
        items = [Emitted(0, event, env, ev.Context()) for event in events]
        for item in items:
            batch = self.encoder.add(0, item.ctx, item.event, item.env)
        self.encoder.take()
        self.snapshot.extend(spec, items, batch, 0)

    def held(self, *streams: str) -> list[object]:
        count, body = self.snapshot.lines(streams or STREAMS)
        lines = body.split(b"\n") if body else []
        assert len(lines) == count
        return [decode_line(line).data for line in lines]


def anomaly(n: int, active: bool) -> ev.Anomaly:
    return ev.Anomaly(kind="stalled", source=f"env{n}", severity="warning", active=active)


def test_the_newest_of_a_type_stay_in_order() -> None:
    log = Log()
    keep = ev.EVENTS["log"].keep
    for i in range(keep + 50):
        log.add(ev.LogLine(level="INFO", logger="x", message=str(i)))
        log.add(ev.RoundStarted(rounds=i))
    held = log.held("log")
    assert [one.message for one in held] == [str(i) for i in range(50, keep + 50)]
    assert log.held("life") == [ev.RoundStarted(rounds=keep + 49)]
    assert log.held()[-2:] == [held[-1], ev.RoundStarted(rounds=keep + 49)]


def test_the_newest_of_many_that_come_together() -> None:
    log = Log()
    keep = ev.EVENTS["log"].keep
    log.add(*[ev.LogLine(level="INFO", logger="x", message=str(i)) for i in range(30)])
    assert [one.message for one in log.held()] == [str(i) for i in range(30)]
    log.add(*[ev.LogLine(level="INFO", logger="x", message=str(i)) for i in range(30, keep + 60)])
    assert [one.message for one in log.held()] == [str(i) for i in range(60, keep + 60)]
    log.add(ev.LogLine(level="INFO", logger="x", message="last"))
    assert [one.message for one in log.held()][-2:] == [str(keep + 59), "last"]


def test_subjects_are_apart() -> None:
    log = Log()
    for env in (0, 1):
        for slot in ("r0c0", "r0c1"):
            log.add(ev.SeedGate(slot=slot, gate="G1", passed=False, checks={}), env=env)
            log.add(ev.SeedGate(slot=slot, gate="G2", passed=True, checks={}), env=env)
    held = log.held()
    assert len(held) == 4
    assert all(gate.gate == "G2" for gate in held)


def test_open_anomalies_outlive_the_bound() -> None:
    log = Log()
    bound = ev.EVENTS["anomaly"].subjects
    for n in range(10):
        log.add(anomaly(n, active=True))
    for n in range(10, bound + 500):
        log.add(anomaly(n, active=False))
    held = log.held()
    assert len(held) == bound
    assert [one.source for one in held if one.active] == [f"env{n}" for n in range(10)]


def test_all_open_is_bounded_too() -> None:
    log = Log()
    bound = ev.EVENTS["anomaly"].subjects
    for n in range(bound + 7):
        log.add(anomaly(n, active=True))
    assert len(log.held()) == bound


@pytest.mark.parametrize("spec", ev.EVENTS.values(), ids=lambda spec: spec.type)
def test_every_key_names_a_field(spec: ev.EventSpec) -> None:
    assert all(key in ("env", "rank") or key in spec.cls.__dataclass_fields__ for key in spec.key)
    assert spec.keep >= 1 or spec.cls is ev.RunProvenance, "it is large, and none that watch a run need it"
