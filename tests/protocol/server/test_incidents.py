"""Anomalies that belong together are one incident, put below the change that came before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.commands import AcknowledgeParams
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.incidents import LINGER_EPOCHS, LINGER_STEPS, IncidentKeeper

EPISODE = 24
SECOND = 10**9


class Run:
    """A keeper, and what it has told; the clock counts epochs from 1."""

    def __init__(self, envs: int = 8, *, kind: Any = "training", boot: str = "b00t") -> None:
        self.told: list[ev.Incident] = []
        self.keeper = IncidentKeeper(self.told.append, boot)  # type: ignore[arg-type]
        self.clock = self.ns = 0
        texts = dict.fromkeys(("run", "name", "host", "version", "torch", "device", "task", "policy"), "")
        lists: dict[str, Any] = {key: [] for key in ("slots", "blueprints", "stages", "ops", "heads")}
        sizes = {"pid": 1, "envs": envs, "episode_epochs": EPISODE, "rounds": 0, "host_parameters": 1}
        self.tell(ev.RunStarted(**texts, **lists, **sizes, boot=boot, seed=1, config={}, kind=kind))

    def tell(self, event: Any, env: int | None = None) -> None:
        self.ns += SECOND
        ctx = ev.Context(round=1 + self.clock // EPISODE, epoch=self.clock % EPISODE)
        self.keeper.observe(ev.spec_of(type(event)), [Emitted(self.ns, event, env, ctx)])

    def epochs(self, count: int) -> None:
        for _ in range(count):
            self.clock += 1
            self.tell(ev.LogLine(level="INFO", logger="x", message="an epoch"))

    def signal(self, source: str, kind: str, severity: Any = "warning", *, active: bool = True) -> None:
        env = int(source[3:5]) if source.startswith("env") else None
        self.tell(ev.Anomaly(kind=kind, source=source, severity=severity, active=active), env)

    def grow(self, env: int, slot: str, blueprint: str) -> None:
        stages = {"from_stage": "DORMANT", "to_stage": "GERMINATED"}
        self.tell(ev.SeedStage(slot=slot, blueprint=blueprint, alpha=0.0, by="policy", **stages), env)

    def open(self) -> dict[str, ev.Incident]:
        newest = {incident.id: incident for incident in self.told}
        return {id_: incident for id_, incident in newest.items() if incident.active}


def test_one_env_is_one_incident() -> None:
    run = Run()
    for kind in ("gradient_vanishing", "degraded", "norm_drift"):
        run.signal("env03", kind)
        run.epochs(3)
    run.signal("env03.r0c1", "gradient_health", "info")
    run.epochs(1)
    run.signal("env05", "loss_nonfinite")
    assert [(one.envs, one.scope) for one in run.open().values()] == [([3], "env03, 1 seed"), ([5], "env05")]


def test_what_begins_together_with_one_kind_is_one_incident() -> None:
    run = Run()
    for env in range(3):
        run.signal(f"env{env:02d}", "gradient_vanishing")
    run.epochs(1)
    (found,) = run.open().values()
    assert (found.scope, found.severity, found.signals) == ("3 of 8 envs", "warning", 3)
    run.signal("env03", "gradient_vanishing")
    assert run.told[-1].change == "worse"
    assert run.told[-1].severity == "critical", "half of the envs"


def test_notes_become_a_warning_where_many_envs_show_them() -> None:
    run = Run(envs=12)
    for env in (0, 1, 2):
        run.grow(env, "r0c0", "lora")
        run.signal(f"env{env:02d}.r0c0", "gradient_vanishing", "info")
    run.epochs(1)
    (found,) = run.open().values()
    assert (found.severity, found.scope) == ("warning", "3 of 12 envs, 3 seeds, all lora")


def test_what_follows_a_change_is_one_incident_with_its_undo() -> None:
    run = Run()
    run.epochs(5)
    changed = ev.ParamChanged(key="host.learning_rate", old=0.05, new=10.0, by="esper-tui/0.2.0", uid=1000)
    run.tell(changed)
    run.epochs(2)
    run.signal("env00", "gradient_vanishing")
    run.epochs(4)
    run.signal("env07", "degraded", "info")
    run.signal("critic", "value_collapse")
    run.epochs(1)
    (found,) = run.open().values()
    assert found.suspect == "host.learning_rate 0.05 -> 10 by esper-tui, uid 1000"
    assert found.undo == "param.set key=host.learning_rate value=0.05"
    assert found.suspect_ts < found.since


def test_a_note_that_grows_worse_looks_for_its_suspect_again() -> None:
    run = Run()
    run.signal("policy", "norm_drift", "info")
    run.epochs(3)
    run.tell(ev.ParamChanged(key="ppo.learning_rate", old=1e-3, new=1.0, by="me/1"))
    run.epochs(1)
    run.signal("policy", "kl_spike")
    assert (run.told[-1].change, run.told[-1].suspect) == ("worse", "ppo.learning_rate 0.001 -> 1 by me")


def test_it_is_named_by_what_is_still_raised() -> None:
    """Before, it kept the name of a signal that was over while others went on."""
    run = Run()
    run.signal("env03", "loss_nonfinite")
    run.epochs(1)
    run.signal("env03", "degraded", "info")
    run.epochs(1)
    run.signal("env03", "loss_nonfinite", active=False)
    run.epochs(1)
    (found,) = run.open().values()
    assert (found.kind, found.severity, found.signals) == ("degraded", "warning", 1)


def test_hosts_that_follow_the_policy_are_counted_too() -> None:
    run = Run()
    run.tell(ev.ParamChanged(key="host.learning_rate", old=0.05, new=10.0, by="me/1"))
    run.signal("critic", "value_collapse")
    for env in range(4):
        run.signal(f"env{env:02d}", "gradient_vanishing")
    assert run.told[-1].severity == "critical"


def test_an_old_change_is_not_suspected() -> None:
    run = Run()
    run.tell(ev.ParamChanged(key="host.learning_rate", old=0.05, new=0.04, by="esper-tui/0.2.0"))
    run.epochs(3 * EPISODE)
    run.signal("env00", "gradient_vanishing")
    assert run.told[-1].suspect == ""


def test_an_operation_on_a_seed_is_suspected_of_its_env() -> None:
    run = Run()
    run.grow(3, "r0c1", "conv_light")
    run.epochs(2)
    run.signal("env03", "degraded", "info")
    assert run.told[-1].suspect == "env03.r0c1 (conv_light) DORMANT -> GERMINATED by the policy"
    assert run.told[-1].undo == "seed.prune env=3 slot=r0c1"
    run.signal("env04", "loss_nonfinite")
    assert run.told[-1].suspect == ""


def test_a_command_is_named_with_its_author() -> None:
    run = Run()
    params = {"env": 2, "slot": "r0c0", "blueprint": "norm"}
    accepted = ev.CommandAccepted(id="x", method="seed.germinate", params=params, client="me", uid=7)
    run.tell(accepted)
    run.epochs(1)
    run.signal("env02", "loss_nonfinite")
    assert run.told[-1].suspect == "seed.germinate env=2 slot=r0c0 blueprint=norm by me, uid 7"
    assert run.told[-1].undo == "seed.prune env=2 slot=r0c0"


def test_a_busy_machine_is_suspected_of_what_is_slow() -> None:
    run = Run()
    sample = ev.SystemSample(
        cpu_percent=42.0,
        rss=1,
        memory_total=2,
        memory_used=1,
        load1=16.0,
        cores=2,
        disk_free=1,
        machine_cpu_percent=100.0,
    )
    run.tell(sample)
    run.signal("system", "slow_epochs")
    assert run.told[-1].suspect == "the machine is busy: 100 %, this run 21 %, load 16.0"


def test_symptoms_join_a_full_disk_which_says_what_waits() -> None:
    run = Run()
    hint = "disk full: 331 events wait, 3 MiB needed"
    run.tell(ev.Anomaly(kind="disk_full", source="telemetry", severity="critical", active=True, hint=hint))
    run.signal("telemetry", "queue_drops")
    run.epochs(1)
    (found,) = run.open().values()
    assert f"{found.title}: {found.scope}" == hint


def test_it_is_over_when_it_was_quiet_for_a_while() -> None:
    run = Run()
    run.signal("env00", "gradient_vanishing")
    run.epochs(1)
    run.signal("env00", "gradient_vanishing", active=False)
    run.epochs(LINGER_EPOCHS - 1)
    (quiet,) = run.open().values()
    assert quiet.signals == 0
    run.signal("env00", "degraded", "info")
    run.epochs(LINGER_EPOCHS)
    assert len(run.open()) == 1, "it has returned"
    run.signal("env00", "degraded", "info", active=False)
    run.epochs(LINGER_EPOCHS)
    assert run.open() == {}
    assert (run.told[-1].change, run.told[-1].over > 0) == ("over", True)


def test_a_published_run_counts_its_steps() -> None:
    run = Run(0, kind="published")
    run.signal("loss", "nonfinite", "critical")
    run.signal("loss", "nonfinite", "critical", active=False)
    for step in range(LINGER_STEPS):
        assert run.open()
        run.tell(ev.Scalars(step=step, values={"loss": 1.0}))
    assert run.open() == {}


def test_a_command_names_an_incident_or_a_signal_in_it() -> None:
    run = Run()
    run.signal("env00", "degraded")
    (found,) = run.open().values()
    assert run.keeper.find(AcknowledgeParams(incident=found.id)) == found
    assert run.keeper.find(AcknowledgeParams(source="env00", kind="degraded")) == found
    assert run.keeper.find(AcknowledgeParams(source="env01", kind="degraded")) is None
    assert run.keeper.find(AcknowledgeParams()) is None


SOURCES = ("env00", "env01", "env01.r0c0", "env05.r0c2", "hosts", "policy", "critic", "system", "telemetry")
STORM = st.lists(
    st.tuples(
        st.sampled_from(SOURCES),
        st.sampled_from(["degraded", "gradient_vanishing", "memory", "share", "disk_full"]),
        st.sampled_from(["info", "warning", "critical"]),
        st.booleans(),
        st.integers(0, 8),
    ),
    max_size=60,
)


@given(STORM)
def test_every_raised_signal_is_in_one_open_incident(storm: list[tuple[str, str, str, bool, int]]) -> None:
    run = Run()
    raised: set[tuple[str, str]] = set()
    for source, kind, severity, active, epochs in storm:
        run.signal(source, kind, severity, active=active)
        (raised.add if active else raised.discard)((source, kind))
        run.epochs(epochs)
    run.epochs(1)
    for source, kind in raised:
        found = run.keeper.find(AcknowledgeParams(source=source, kind=kind))
        assert found is not None
        assert found.id in run.open()
    assert sum(one.signals for one in run.open().values()) == len(raised)
    for before, after in zip(run.told, run.told[1:], strict=False):
        assert replace(before, change="over") != replace(after, change="over"), "nothing is told twice"
    run.epochs(1)
    for source, kind in sorted(raised):
        run.signal(source, kind, active=False)
    run.epochs(LINGER_EPOCHS)
    assert run.open() == {}
