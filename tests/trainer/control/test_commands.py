"""Parameters and seeds changed by the operator: when, by which rules, told how, and kept over a resume."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.events import (
    CommandDone,
    CommandFailed,
    CommandProgress,
    EvaluationFinished,
    GovernorVeto,
    ParamChanged,
    PPOUpdate,
    SeedGate,
    SeedStage,
)
from esper_overwatch.protocol.messages.vocabulary import LIVE, Op, Stage
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.mailbox import Command
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon.daemon import Daemon
from esper_overwatch.trainer.daemon.resume import ResumeRequest
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hooks import StopRun
from esper_overwatch.trainer.hosts.task_defaults import resolve_task_defaults
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.coefficients import entropy_coefficient
from esper_overwatch.trainer.seeds.table import is_in
from tests.cases import nightly
from tests.protocol.values import assert_fits

torch.set_num_threads(1)
SETS = [
    "envs.count=4",
    "episode_epochs=6",
    "task.batches_per_epoch=2",
    "host.channels=4,8",
    "ppo.minibatches=2",
    "rounds=2",
    "envs.threads=1",
    "device=cpu",
    "envs.group_size=4",
    "envs.convolution=grouped",
]
_numbers = itertools.count()
Script = dict[tuple[int, int], list[Command]]


def command(method: str, **params: Any) -> Command:
    return Command(
        id=f"c{next(_numbers)}",
        method=method,
        params=msgspec.convert(params, METHODS[method].params),
        client="tester",
        uid=7,
        pid=8,
        reason="",
        received=0,
    )


class Rig:
    """A daemon without its sockets: commands reach it at the boundaries that a script names."""

    def __init__(self, folder: Path, *sets: str, resumed: bool = False) -> None:
        self.run = RunFolder.claim("rig", home=folder)
        sourced = settings.load_sourced(sets=[*SETS, *sets])
        data = load("digits")
        self.daemon = Daemon(
            self.run,
            resolve_task_defaults(sourced, data.name, data.kind).config,
            torch.device("cpu"),
            data,
            resume=ResumeRequest() if resumed else None,
            process_group=ProcessGroup(),
        )
        self.events: list[tuple[Any, int | None]] = []

    @property
    def trainer(self) -> Trainer:
        return self.daemon.trainer

    def play(
        self,
        script: Script,
        *,
        until: tuple[int, int] | None = None,
        watch: Callable[[Rig], None] = lambda _: None,
    ) -> None:
        """Train to the end, or to a boundary where it saves and stops."""
        finished = self.daemon.hooks.on_epoch_end

        def boundary(*here: int) -> None:
            for one in script.get((here[0], here[1]), []):
                self.daemon.server.mailbox.put(one)
            finished(*here)
            watch(self)
            if here == until:
                self.daemon.saver.save("test")
                raise StopRun("here", checkpoint=False)

        self.daemon.hooks.on_epoch_end = boundary  # type: ignore[method-assign]
        with contextlib.suppress(StopRun):
            self.trainer.run(self.daemon.hooks)
        self.events += [(e.event, e.env) for e in self.daemon.server.emitter.drain(1_000_000)]
        for done in self.told(CommandDone):
            assert_fits(done.result, METHODS[done.method].result)

    def told(self, kind: type) -> list[Any]:
        return [event for event, _ in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.trainer.population.close()
        self.daemon.server.close()
        self.run.release()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(name: str = "a", *sets: str, resumed: bool = False) -> Rig:
        made.append(Rig(tmp_path / name, *sets, resumed=resumed))
        return made[-1]

    yield make
    for one in made:
        one.close()


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """A nested state, flat."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in leaves(item, f"{path}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, item in enumerate(value) for k, v in leaves(item, f"{path}.{i}").items()}
    return {path: value}


def differing(a: Any, b: Any) -> list[str]:
    one, other = leaves(a), leaves(b)
    assert one.keys() == other.keys()

    def same(x: Any, y: Any) -> bool:
        if isinstance(x, torch.Tensor):
            return torch.equal(x.nan_to_num(7e7), y.nan_to_num(7e7)) if x.is_floating_point() else x.equal(y)
        return bool(x == y)

    return [key for key in one if not same(one[key], other[key])]


def script() -> Script:
    return {
        (1, 2): [command("param.set", key="host.learning_rate", value=0.02)],
        (1, 3): [command("seed.germinate", env=1, slot="r0c1", blueprint="norm", style="GATE")],
        (1, 4): [
            command("param.set", key="reward.rent", value=0.5),
            command("param.set", key="ppo.learning_rate", value=5e-4),
        ],
        (2, 1): [command("seed.prune", env=1, slot="r0c1"), command("seed.prune", env=0, slot="r0c0")],
    }


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_what_was_set(rig: Callable[..., Rig]) -> None:
    whole = rig("whole", "policy.kind=ppo")
    whole.play(script())
    cut = rig("cut")
    cut.play(script(), until=(2, 3))
    cut.close()
    again = rig("cut", resumed=True)
    assert again.trainer.epoch == 3, "in mid-episode"
    assert again.daemon.control.parameters.changed == {
        "host.learning_rate": (0.05, 0.02),
        "ppo.learning_rate": (1e-3, 5e-4),
        "reward.rent": (0.01, 0.5),
    }
    again.play({})
    assert not differing(whole.trainer.state_dict(), again.trainer.state_dict())
    untouched = rig("plain")
    untouched.play({})
    assert differing(whole.trainer.state_dict(), untouched.trainer.state_dict()), "it changed something"


def test_a_weight_of_the_reward_waits_for_the_next_round(rig: Callable[..., Rig]) -> None:
    one = rig()
    seen: list[tuple[int, int, float]] = []
    one.play(
        {(1, 2): [command("param.set", key="reward.stage", value=0.9)]},
        watch=lambda r: seen.append((r.trainer.round, r.trainer.epoch, r.trainer.reward.run.cfg.stage)),
    )
    assert [stage for _, _, stage in seen] == [0.2] * 6 + [0.9] * 6
    (changed,) = one.told(ParamChanged)
    assert (changed.key, changed.old, changed.new) == ("reward.stage", 0.2, 0.9)
    assert (changed.by, changed.uid, changed.pid) == ("tester", 7, 8)
    assert one.told(CommandDone)[0].result == {"key": "reward.stage", "old": 0.2, "new": 0.9}


@pytest.mark.slow
def test_evaluations_are_counted_as_configured(rig: Callable[..., Rig]) -> None:
    """Else those of one run would not be comparable; the rival of round 2 grows, and pays rent."""
    sets = ("evaluation.rounds=2", "evaluation.hosts=2", "evaluation.rivals=no_growth,fixed")
    changes = [
        command("param.set", key="reward.rent", value=5.0),
        command("param.set", key="host.learning_rate", value=0.5),
    ]
    found = []
    for name, at_two in (("plain", []), ("changed", changes)):
        one = rig(name, *sets)
        one.play({(1, 2): at_two})
        found.append([e.return_components for e in one.told(EvaluationFinished) if e.is_rival])
    assert found[0][1]["rent"] < 0
    assert found[0] == found[1]


def test_ppo_learns_at_the_rate_that_was_set(rig: Callable[..., Rig]) -> None:
    one = rig()
    one.play({(1, 6): [command("param.set", key="ppo.learning_rate", value=2e-4)]})
    assert [u.learning_rate for u in one.told(PPOUpdate)] == [2e-4, 2e-4]


@pytest.mark.slow
def test_annealed_entropy_can_be_raised_again(rig: Callable[..., Rig]) -> None:
    """Once it has annealed, what it began with has no effect any more."""
    one = rig("a", "ppo.entropy_rounds=1", "ppo.entropy_final=0.01")
    one.play({(1, 6): [command("param.set", key="ppo.entropy_final", value=0.2)]})
    assert one.trainer.agent.ppo is not None
    assert entropy_coefficient(one.trainer.agent.ppo.cfg, 5) == 0.2


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ppo.learning_rate", 2.0, "must be a number from 0.0 to 1.0"),
        ("reward.rent", -0.1, "must be a number from 0.0"),
        ("envs.count", 3, "cannot be changed while the run trains; these can: host.learning_rate"),
        ("nonsense", 1, "cannot be changed"),
        ("host.learning_rate", float("nan"), "must be"),
    ],
)
def test_what_cannot_be_set_is_refused(rig: Callable[..., Rig], key: str, value: float, text: str) -> None:
    with pytest.raises(RequestError, match=text.replace(".", r"\.")) as refused:
        rig().daemon.control.parameters.check(key, value)
    assert refused.value.kind == "invalid_params"


def test_a_run_without_ppo_has_none_of_its_parameters(rig: Callable[..., Rig]) -> None:
    parameters = rig("a", "policy.kind=fixed").daemon.control.parameters
    assert set(parameters.describe()) == {
        "host.learning_rate",
        "reward.rent",
        "reward.contribution",
        "reward.stage",
    }
    with pytest.raises(RequestError):
        parameters.check("ppo.learning_rate", 1e-4)


def test_operator_seeds_are_reported_with_who_acted(rig: Callable[..., Rig]) -> None:
    one = rig("a", "policy.kind=no_growth", "seeds.blueprints=norm,conv_light")
    plant = command("seed.germinate", env=2, slot="r0c1", blueprint="conv_light")
    prune = command("seed.prune", env=2, slot="r0c1")
    one.play({(1, 1): [plant], (1, 4): [prune]})
    stages = [
        (env, e.slot, e.to_stage, e.blueprint, e.by, e.command)
        for e, env in one.events
        if isinstance(e, SeedStage)
    ]
    assert stages[:3] == [
        (2, "r0c1", "GERMINATED", "conv_light", "operator", plant.id),
        (2, "r0c1", "TRAINING", "conv_light", "auto", None),
        (2, "r0c1", "PRUNED", "conv_light", "operator", prune.id),
    ]
    gates = [(e.gate, e.command) for e, env in one.events if isinstance(e, SeedGate) and env == 2]
    assert gates[0] == ("G0", plant.id)
    assert all(id_ is None for _, id_ in gates[1:])
    assert all(by != "governor" for *_, by, _ in stages)
    assert [d.result["stage"] for d in one.told(CommandDone)] == ["GERMINATED", "PRUNED"]


def test_a_seed_of_the_operator_learns(rig: Callable[..., Rig]) -> None:
    one = rig("a", "policy.kind=no_growth")
    grown: list[float] = []

    def watch(r: Rig) -> None:
        grown.append(float(r.trainer.measurements.seed_grad_norm[2, 1]))

    one.play({(1, 1): [command("seed.germinate", env=2, slot="r0c1", blueprint="norm")]}, watch=watch)
    assert grown[1] > 0.0, "its gradients are there from the coming epoch on"


def test_the_rollout_holds_the_policys_own_acts(rig: Callable[..., Rig]) -> None:
    """What the policy saw, did and thought probable is the same whether or not the operator acts after it."""
    one, other = rig("a"), rig("b")
    acts: Script = {(1, 2): [command("seed.germinate", env=3, slot="r0c1", blueprint="norm")]}
    for each, plan in ((one, acts), (other, {})):
        each.play(plan, until=(1, 3))
    assert not one.told(CommandFailed), "this seed's policy leaves the slot alone"
    for name in ("actions", "log_prob", "value", "legal"):
        mine, theirs = getattr(one.trainer.rollout, name), getattr(other.trainer.rollout, name)
        assert torch.equal(mine[:3], theirs[:3]), name
    assert one.trainer.table.stage[3, 1] != other.trainer.table.stage[3, 1]


def test_the_gates_bind_the_operator(rig: Callable[..., Rig]) -> None:
    one = rig("a", "policy.kind=no_growth")
    before: list[Any] = []
    one.play(
        {(1, 1): [command("seed.prune", env=0, slot="r0c0")]},
        watch=lambda r: before.append(r.trainer.table.stage.clone()),
    )
    (failed,) = one.told(CommandFailed)
    assert failed.kind == "wrong_state"
    assert failed.message == "env 0 slot r0c0 is DORMANT: PRUNE is not possible there now"
    assert all((stage == Stage.DORMANT).all() for stage in before)


@pytest.mark.parametrize("rule", ["seeds.max_live=1", "seeds.one_at_a_time=true"])
def test_limits_on_seeds_bind_the_operator(rig: Callable[..., Rig], rule: str) -> None:
    one = rig("a", "policy.kind=no_growth", rule)
    plant = [command("seed.germinate", env=0, slot=slot, blueprint="norm") for slot in ("r0c0", "r0c1")]
    one.play({(1, 1): plant}, until=(1, 2))
    (failed,) = one.told(CommandFailed)
    name = rule.partition("=")[0]
    assert failed.message == f"env 0 slot r0c1 is DORMANT: GERMINATE is not possible there now ({name})"


def test_limits_on_seeds_hold_through_random_rounds(rig: Callable[..., Rig]) -> None:
    one = rig(
        "a", "policy.kind=random", "host.channels=4,8,4", "seeds.max_live=2", "seeds.one_at_a_time=true"
    )
    most = []

    def watch(r: Rig) -> None:
        most.append(int(is_in(r.trainer.table.stage, LIVE).sum(1).max()))

    one.play({}, watch=watch)
    planted = [event for event in one.told(SeedStage) if event.to_stage == "GERMINATED"]
    assert len(planted) >= 8
    assert max(most) <= 2
    rollout = one.trainer.rollout
    chosen = rollout.actions[..., 0] == Op.GERMINATE
    assert chosen.any()
    assert rollout.legal.gather(2, rollout.actions[..., :1, None].expand(-1, -1, -1, 3)).any(-1).all()


def test_what_the_governor_forbids_is_told_and_binds_the_operator(rig: Callable[..., Rig]) -> None:
    one = rig("a", "policy.kind=no_growth")

    def forbid(r: Rig) -> None:
        if r.trainer.epoch == 2:
            r.trainer.governor._state["lowered"][0, 1] = 3

    one.play(
        {
            (1, 1): [command("seed.germinate", env=0, slot="r0c1", blueprint="norm")],
            (1, 4): [command("seed.prune", env=0, slot="r0c1")],
        },
        until=(1, 5),
        watch=forbid,
    )
    (failed,) = one.told(CommandFailed)
    assert failed.message.startswith("env 0 slot r0c1: the governor forbids PRUNE now: a rollback has just")
    (veto,) = one.told(GovernorVeto)
    assert veto == GovernorVeto(slot="r0c1", ops=["PRUNE"], reason="undone")


def test_seed_action_behind_last_epoch_waits_for_next_episode(rig: Callable[..., Rig]) -> None:
    one = rig("a", "policy.kind=no_growth")
    one.play({(1, 6): [command("seed.germinate", env=0, slot="r0c0", blueprint="norm")]})
    (done,) = one.told(CommandDone)
    assert done.result["stage"] == "GERMINATED"
    planted = [i for i, (e, _) in enumerate(one.events) if isinstance(e, SeedStage)]
    round_two = [i for i, (e, _) in enumerate(one.events) if type(e).__name__ == "RoundStarted"][1]
    assert planted
    assert planted[0] > round_two


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        ("seed.prune", {"env": 4, "slot": "r0c0"}, "envs 0 to 3"),
        ("seed.prune", {"env": 0, "slot": "r9c9"}, "no slot 'r9c9'; there are r0c0, r0c1"),
        (
            "seed.germinate",
            {"env": 0, "slot": "r0c0", "blueprint": "oak"},
            "no blueprint 'oak'; there are norm",
        ),
        ("telemetry.escalate", {"env": 4}, "envs 0 to 3"),
        ("telemetry.escalate", {"level": "NORMAL"}, "all the time; ask for more"),
    ],
)
def test_what_can_never_be_is_refused_at_once(
    rig: Callable[..., Rig], method: str, params: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError, match=text):
        rig().daemon.control.check(command(method, **params).params, "TRAINING")


def test_open_escalations_are_bounded(rig: Callable[..., Rig]) -> None:
    daemon, asked = rig().daemon, command("telemetry.escalate", epochs=50).params
    for number in range(64):
        assert "is paused" in (daemon.control.check(asked, "PAUSED") or "")
        daemon.plan.escalate("DEBUG", 50, reason="", command=str(number))
    with pytest.raises(RequestError, match=r"64 escalations are open, .*: cancel one") as refused:
        daemon.control.check(asked, "PAUSED")
    assert refused.value.kind == "busy"
    daemon.plan.cancel("7", "")
    daemon.control.check(asked, "TRAINING")


def outcome(rig: Rig, id_: str) -> str:
    ends = [e for e, _ in rig.events if isinstance(e, CommandDone | CommandFailed) and e.id == id_]
    assert len(ends) == 1, ends
    return "done" if isinstance(ends[0], CommandDone) else ends[0].kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("telemetry.escalate", {"epochs": 50}),
        ("profiler.start", {"epochs": 2, "with_update": True}),
        nightly("profiler.start", {"epochs": 50}),
        ("stop", {"mode": "after_round"}),
        ("param.set", {"key": "reward.rent", "value": 0.5}),
    ],
)
def test_long_commands_can_be_cancelled(rig: Callable[..., Rig], method: str, params: dict[str, Any]) -> None:
    one = rig()
    long = command(method, **params)
    cancel = command("op.cancel", op=long.id)
    one.play({(1, 1): [long], (1, 3): [cancel]})
    assert (outcome(one, long.id), outcome(one, cancel.id)) == ("cancelled", "done")
    assert one.trainer.round == 2, "a stop that was cancelled does not stop"
    assert not one.daemon.plan.layer_envs.any()
    assert not one.daemon.commands.profiler.active
    assert not one.daemon.control.parameters.changed
    assert not list(one.run.traces.glob("*")) if one.run.traces.exists() else True


def test_what_has_not_begun_is_cancelled_in_the_mailbox(rig: Callable[..., Rig]) -> None:
    one = rig()
    save = command("checkpoint", tag="never")
    cancel = command("op.cancel", op=save.id)
    other = command("checkpoint", tag="kept")
    one.play({(1, 1): [save, cancel, other]}, until=(1, 1))
    assert [outcome(one, c.id) for c in (save, cancel, other)] == ["cancelled", "done", "done"]
    assert not list(one.run.checkpoints.glob("*never*"))


def test_cancelling_what_is_not_open_fails(rig: Callable[..., Rig]) -> None:
    one = rig()
    cancel = command("op.cancel", op="nothing")
    one.play({(1, 1): [cancel]}, until=(1, 1))
    assert outcome(one, cancel.id) == "not_found"


def test_long_commands_tell_how_far_they_are(rig: Callable[..., Rig]) -> None:
    one = rig()
    escalate, stop = command("telemetry.escalate", epochs=3), command("stop", mode="after_round")
    profile = command("profiler.start", epochs=2)
    one.play({(1, 1): [escalate, profile, stop]})
    told = [(p.id, p.done, p.total) for p in one.told(CommandProgress)]
    assert [(done, total) for id_, done, total in told if id_ == escalate.id] == [(1, 3), (2, 3), (3, 3)]
    assert [(done, total) for id_, done, total in told if id_ == profile.id] == [(1, 2), (2, 2)]
    assert [(done, total) for id_, done, total in told if id_ == stop.id] == [(e, 6) for e in range(2, 7)]
    collected = next(done.result for done in one.told(CommandDone) if done.id == escalate.id)
    assert collected == {
        "collected": "DEBUG",
        "epochs": 3,
        "until": "round 1 epoch 4",
        "level_after": "NORMAL",
    }


@pytest.mark.slow
def test_last_epoch_is_told_whatever_the_steps(rig: Callable[..., Rig]) -> None:
    one, stop = rig("a", "episode_epochs=41"), command("stop", mode="after_round")
    one.play({(1, 37): [stop]})
    assert [(p.done, p.total) for p in one.told(CommandProgress)] == [(38, 41), (40, 41), (41, 41)]


def test_every_command_of_the_table_has_its_action(rig: Callable[..., Rig]) -> None:
    at_epoch = {m.name for m in METHODS.values() if m.socket == "ctl" and m.at == "epoch"}
    assert set(rig().daemon.commands.handlers) == at_epoch
