"""What raises an alert: events in, alerts out."""

from __future__ import annotations

import math

import pytest

from esper_overwatch.protocol.alerts.condition import parse_condition
from esper_overwatch.protocol.alerts.judge import BURST_ALERTS, Raised, RuleJudge
from esper_overwatch.protocol.alerts.rules import Rule
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context, spec_of
from esper_overwatch.protocol.server.emitter import Emitted
from tests.protocol.values import an_event


class Run:
    """A run whose events one rule judges; steps and epochs take a second by a clock that stands still."""

    def __init__(self, when: str, *, kind: str = "training") -> None:
        self.raised: list[Raised] = []
        self.warnings: list[str] = []
        rule = Rule(name="mine", when=parse_condition(when), run="pause")
        self._judge = RuleJudge(
            [rule], "7f3a01bc", self.raised.append, self.warnings.append, lambda: self._seconds
        )
        self._seconds = 0
        slots = ["r0c0", "r0c1"]
        self.tell(an_event(ev.RunStarted, kind=kind, episode_epochs=10, slots=slots), 0)

    def tell(self, event: object, epoch: int = 0, round_: int = 1) -> int:
        """Judge an event; gives how many alerts it has raised."""
        before = len(self.raised)
        self._seconds += 1
        item = Emitted(10**18, event, None, Context(round=round_, epoch=epoch))
        self._judge.observe(spec_of(type(event)), [item])
        return len(self.raised) - before

    def log(self, step: int, **values: float) -> int:
        return self.tell(ev.Scalars(step=step, values=values))


def courses(run: Run, name: str, values: list[float]) -> list[int]:
    return [run.log(step, **{name: value}) for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("when", "values", "raised"),
    [
        ("x > 2", [1, 3, 4, 1, 3], [0, 1, 0, 0, 1]),
        ("x is nan", [1, math.inf, math.nan, math.nan, 1, math.nan], [0, 0, 1, 0, 0, 1]),
        ("x is nonfinite", [1, math.inf, math.nan, 1], [0, 1, 0, 0]),
        ("x > 2 for 3 steps", [3, 3, 1, 3, 3, 3, 3], [0, 0, 0, 0, 0, 1, 0]),
        ("x > 2 for 3 epochs", [3, 3, 3], [0, 0, 1]),
        ("x > 2 for 2 seconds", [3, 3, 3, 3], [0, 0, 1, 0]),
        ("y > 2", [3, 3], [0, 0]),
    ],
)
def test_published_numbers_raise_once_until_they_recover(
    when: str, values: list[float], raised: list[int]
) -> None:
    assert courses(Run(when, kind="published"), "x", values) == raised


def test_steps_that_go_back_begin_to_hold_again() -> None:
    run = Run("x > 2 for 5 steps", kind="published")
    assert [run.log(step, x=3) for step in (10, 11, 2, 5, 6)] == [0, 0, 0, 0, 1]


def test_columns_that_are_no_slots_have_numbers() -> None:
    run = Run("op_probability > 0.9")
    shares = [[0.1] * 6, [0.0, 0.0, 0.0, 0.0, 0.95, 0.05]]
    assert run.tell(an_event(ev.EpochFinished, op_probability=shares), 1) == 1
    assert run.raised[0].text == "op_probability = 0.95 in env01.4"


def test_metric_of_a_training_holds_in_each_env_alone() -> None:
    run = Run("loss > 2 for 3 epochs")
    losses = [[3, 1, None], [3, 3, None], [1, 3, None], [1, 3, math.nan]]
    told = [an_event(ev.EpochFinished, train_loss=loss) for loss in losses]
    raised = [run.tell(event, epoch) for epoch, event in enumerate(told, start=1)]
    assert raised == [0, 0, 0, 1]
    assert (run.raised[0].text, run.raised[0].title) == ("loss = 3 in env01", "loss > 2 for 3 epochs")


@pytest.mark.parametrize(
    ("when", "event", "text"),
    [
        ("contribution < 0", an_event(ev.EpochFinished, contribution=[[0.1, -0.5]]), " = -0.5 in env00.r0c1"),
        ("phases.train > 2", an_event(ev.EpochFinished, phases={"train": 3.0, "wait": 9.0}), " = 3"),
        ("drift > 2", an_event(ev.Drift, source=["env07", "me"], norm_drift=[1.0, 4.0]), " = 4 in me"),
        ("approx_kl > 0.1", an_event(ev.PPOUpdate, approx_kl=0.5), " = 0.5"),
        ("ppo.update.seconds > 9", an_event(ev.PPOUpdate, seconds=10.0), " = 10"),
        ("return < 0", an_event(ev.RoundFinished, return_mean=-1.0), " = -1"),
        ("disk_free < 1000", an_event(ev.SystemSample, disk_free=10), " = 10"),
    ],
)
def test_metrics_of_a_training_are_found_by_name(when: str, event: object, text: str) -> None:
    run = Run(when)
    assert run.tell(event) == 1
    assert run.raised[0].text == when.split()[0] + text
    assert not run.warnings


def test_name_that_no_training_has_is_told_with_the_nearest() -> None:
    assert Run("val_los > 2").warnings == [
        "alerts.mine: a training has no metric val_los; did you mean val_loss?"
    ]
    assert not Run("val_los > 2", kind="published").warnings
    for name, hint in (("phases", "did you mean phases.KEY?"), ("loss.env03", "no metric loss.env03")):
        assert hint in Run(f"{name} > 2").warnings[0], "it would never be raised"
    assert not Run("phases.train > 2").warnings


def test_incidents_raise_when_they_begin_and_grow_worse() -> None:
    run = Run("incident.severity >= warning")
    changes = [("began", "info"), ("worse", "warning"), ("changed", "warning"), ("worse", "critical")]
    told = [
        run.tell(an_event(ev.Incident, change=change, severity=severity, kind="kl_spike", title="KL"))
        for change, severity in [*changes, ("over", "critical")]
    ]
    assert told == [0, 1, 0, 1, 0]
    assert [(alert.level, alert.title) for alert in run.raised] == [("warning", "KL"), ("critical", "KL")]


def test_kind_of_anomaly_raises_until_no_source_has_it() -> None:
    run = Run("silent")

    def anomaly(source: str, *, active: bool) -> ev.Anomaly:
        return ev.Anomaly(kind="silent", source=source, severity="critical", active=active, hint="hangs")

    course = [("trainer", True), ("loop", True), ("trainer", False), ("loop", False), ("loop", True)]
    assert [run.tell(anomaly(source, active=active)) for source, active in course] == [1, 0, 0, 0, 1]
    assert (run.raised[0].level, run.raised[0].text) == ("critical", "trainer: hangs")


def test_ends_are_told_apart() -> None:
    ends = {
        "completed": ev.RunStopped(reason=ev.FINISHED, exit_code=0, rounds=0),
        "stopped": ev.RunStopped(reason="SIGTERM", exit_code=0, rounds=0),
        "failed": ev.RunStopped(reason="training failed", exit_code=11, rounds=0, error="no memory"),
    }
    for word in ends:
        assert [end for end, event in ends.items() if Run(word).tell(event)] == [word]


def test_alerts_of_the_loop_raise_by_their_level() -> None:
    run = Run("alert.level >= warning", kind="published")
    for level in ("info", "warning", "critical"):
        run.tell(an_event(ev.Alert, id=level, rule="", change="raised", level=level, title=level))
    run.tell(an_event(ev.Alert, id="x", rule="other", change="raised", level="critical"))
    assert [alert.title for alert in run.raised] == ["warning", "critical"]


def test_flood_is_cut_and_counted_in_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("esper_overwatch.protocol.server.rate_limiter.time.monotonic", lambda: now[0])
    run = Run("x > 2", kind="published")
    courses(run, "x", [1, 3] * 50)
    assert len(run.raised) == BURST_ALERTS
    now[0] += 60.0
    courses(run, "x", [1, 3])
    assert run.raised[-1].text == f"x = 3 (and {50 - int(BURST_ALERTS)} before it that were too many)"


def test_same_place_of_the_run_gives_the_same_id() -> None:
    first, again = (Run("x > 2", kind="published") for _ in range(2))
    for run, values in ((first, [1, 3, 1, 3]), (again, [1, 3, 3, 3])):
        courses(run, "x", values)
    assert [alert.id for alert in first.raised][:1] == [alert.id for alert in again.raised]
    assert len({alert.id for alert in first.raised}) == 2
