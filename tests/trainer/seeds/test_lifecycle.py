"""The life of seeds: only legal edges, exact embargo, exact ramps, and "legal" means "executed"."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    BLENDED,
    HEAD_NAMES,
    LEGAL_EDGES,
    LIVE,
    TEMPOS,
    Curve,
    Op,
    Stage,
    Style,
)
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds import alpha
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle, passed
from esper_overwatch.trainer.seeds.table import SlotTable, is_in
from tests.trainer.hosts.plots import config

torch.set_num_threads(1)
N, S = 2, 2
SIZES = (len(Op), S, 7, len(Style), len(TEMPOS), len(ALPHA_TARGETS), len(ALPHA_SPEEDS), len(Curve))
WISHES: tuple[tuple[Op, ...], ...] = (
    (),
    (Op.ADVANCE, Op.GERMINATE, Op.WAIT),
    (Op.WAIT,),
    (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE, Op.WAIT),
    (Op.SET_ALPHA, Op.ADVANCE, Op.GERMINATE, Op.WAIT),
    (Op.PRUNE, Op.WAIT),
)
"""What an env would do, the first legal op of a row; the empty row is any action, legal or not."""
EXECUTED_BY_POLICY = {
    (Stage.DORMANT, Stage.GERMINATED),
    (Stage.TRAINING, Stage.BLENDING),
    (Stage.HOLDING, Stage.BLENDING),
    (Stage.HOLDING, Stage.FOSSILIZED),
    (Stage.GERMINATED, Stage.PRUNED),
    (Stage.TRAINING, Stage.PRUNED),
    (Stage.BLENDING, Stage.PRUNED),
    (Stage.HOLDING, Stage.PRUNED),
}


def measurements(
    n: int = N, s: int = S, *, health: float = 1.0, norm: float = 0.5, accuracy: float = 0.5
) -> Measurements:
    out = Measurements.unmeasured(n, s)
    out.seed_health.fill_(health)
    out.seed_grad_norm.fill_(norm)
    out.val_accuracy.fill_(accuracy)
    out.host_grad_norm.fill_(1.0)
    return out


def action(op: Op, slot: int = 0, **heads: int) -> list[int]:
    choice = {"op": int(op), "slot": slot, **heads}
    return [choice.get(name, 0) for name in HEAD_NAMES]


def act(life: Lifecycle, table: SlotTable, seen: Measurements, *rows: list[int]) -> Tensor:
    return life.apply(table, torch.tensor(rows), life.legal(table, seen), seen)


@pytest.mark.parametrize("before", Stage)
@pytest.mark.parametrize("after", Stage)
def test_a_stage_is_entered_by_legal_edges_alone(before: Stage, after: Stage) -> None:
    table = SlotTable.empty(N, S)
    table.stage[1, 0] = int(before)
    where = torch.zeros(N, S, dtype=torch.bool)
    where[1, 0] = True
    if (before, after) not in LEGAL_EDGES:
        with pytest.raises(RuntimeError, match=f"may not enter {after.name}"):
            table.enter({after: where}, measurements().val_accuracy)
        assert table.stage[1, 0] == before
        return
    table.enter({after: where}, measurements().val_accuracy)
    assert table.stage.flatten().tolist() == [0, 0, int(after), 0]


def test_only_a_resetting_slot_can_be_cleared() -> None:
    table = SlotTable.empty(N, S)
    table.stage[0, 1] = int(Stage.FOSSILIZED)
    table.stage[1, 1] = int(Stage.RESETTING)
    accuracy = measurements().val_accuracy
    table.enter({Stage.DORMANT: table.stage == Stage.RESETTING}, accuracy)
    with pytest.raises(RuntimeError, match="may not enter DORMANT"):
        table.enter({Stage.DORMANT: table.stage == Stage.FOSSILIZED}, accuracy)
    assert table.stage.flatten().tolist() == [0, int(Stage.FOSSILIZED), 0, 0]


class Life(RuleBasedStateMachine):
    """Epochs with arbitrary actions and measurements, legal or not, checked against the rules."""

    @initialize(
        embargo=st.integers(1, 4),
        strict=st.booleans(),
        minimum=st.integers(0, 3),
        max_live=st.integers(0, S),
        one_at_a_time=st.booleans(),
    )
    def begin(self, embargo: int, strict: bool, minimum: int, max_live: int, one_at_a_time: bool) -> None:
        cfg = config(
            N,
            (8, 8),
            seeds__embargo_epochs=embargo,
            seeds__gates="strict" if strict else "permissive",
            seeds__min_training_epochs=minimum,
            seeds__max_live=max_live,
            seeds__one_at_a_time=one_at_a_time,
        )
        self.max_live, self.one_at_a_time = max_live or S, one_at_a_time
        self.life, self.table, self.embargo = Lifecycle(cfg), SlotTable.empty(N, S), embargo
        self.closed = [[0] * S for _ in range(N)]
        self.before = self.table.state_dict()

    def edges(
        self, before: Tensor, allowed: set[tuple[Stage, Stage]] | frozenset[tuple[Stage, Stage]]
    ) -> None:
        for one, two in zip(before.flatten().tolist(), self.table.stage.flatten().tolist(), strict=True):
            assert one == two or (Stage(one), Stage(two)) in allowed, (Stage(one), Stage(two))

    @rule(
        codes=st.tuples(*[st.integers(0, math.prod(SIZES) - 1)] * N),
        wishes=st.tuples(*[st.sampled_from(WISHES)] * N),
        health=st.sampled_from([1.0, 0.9, 0.8, 0.2, float("nan")]),
        norm=st.sampled_from([0.5, 0.4, 0.3, 1e3, float("nan")]),
        accuracy=st.floats(0, 1, width=32),
        contribution=st.sampled_from([0.2, 0.0, -0.1, float("nan")]),
    )
    def epoch(
        self,
        codes: tuple[int, ...],
        wishes: tuple[tuple[Op, ...], ...],
        health: float,
        norm: float,
        accuracy: float,
        contribution: float,
    ) -> None:
        seen = measurements(health=health, norm=norm, accuracy=accuracy)
        blended = is_in(self.table.stage, BLENDED)
        self.table.record_contribution(torch.where(blended, contribution, float("nan")))
        stage = self.table.stage.clone()
        self.life.advance(self.table, seen)
        self.edges(stage, LEGAL_EDGES - (EXECUTED_BY_POLICY - {(Stage.BLENDING, Stage.PRUNED)}))
        self.check_embargo(stage)
        legal = self.life.legal(self.table, seen)
        before = self.table.state_dict()
        chosen = torch.stack(torch.unravel_index(torch.tensor(codes), SIZES), dim=1)
        for env, wish in enumerate(wishes):
            if wish:
                chosen[env, 0] = next(op for op in wish if legal[env, op, chosen[env, 1]])
        executed = self.life.apply(self.table, chosen, legal, seen)
        self.edges(before["stage"], EXECUTED_BY_POLICY)
        self.check_room(before["stage"], legal)
        assert torch.equal(executed, legal[torch.arange(N), chosen[:, 0], chosen[:, 1]])
        self.check_untouched(before, chosen, executed)

    def check_embargo(self, before: Tensor) -> None:
        for i, j in product(range(N), range(S)):
            if before[i, j] == Stage.EMBARGOED:
                self.closed[i][j] += 1
                if self.table.stage[i, j] == Stage.RESETTING:
                    assert self.closed[i][j] == self.embargo
                else:
                    assert self.closed[i][j] < self.embargo
            else:
                self.closed[i][j] = 0
            if before[i, j] == Stage.RESETTING:
                assert self.table.stage[i, j] == Stage.DORMANT

    def check_room(self, before: Tensor, legal: Tensor) -> None:
        """A free slot can be planted exactly where the host's other seeds leave room."""
        for stages, plantable, now in zip(before, legal[:, Op.GERMINATE], self.table.stage, strict=True):
            live = sum(Stage(s) in LIVE for s in stages.tolist())
            young = any(stage in (1, 2, 3) for stage in stages.tolist())
            room = live < self.max_live and not (self.one_at_a_time and young)
            assert plantable.tolist() == [room and stage == Stage.DORMANT for stage in stages.tolist()]
            assert sum(Stage(s) in LIVE for s in now.tolist()) <= self.max_live

    def check_untouched(self, before: dict[str, Tensor], chosen: Tensor, executed: Tensor) -> None:
        """A slot that was not acted on changes in nothing but a moving alpha."""
        acted = executed.unsqueeze(1) & (torch.arange(S) == chosen[:, 1:2]) & (chosen[:, :1] != Op.WAIT)
        for name, value in before.items():
            if name not in ("alpha", "ramp_done"):
                now = getattr(self.table, name)
                same = (now == value) | ((now != now) & (value != value))
                assert same[~acted].all(), name
        still = ~acted & (before["ramp_epochs"] == 0)
        assert torch.equal(self.table.alpha[still], before["alpha"][still])

    @invariant()
    def is_consistent(self) -> None:
        if not hasattr(self, "table"):
            return
        t = self.table
        low, high = torch.minimum(t.alpha_from, t.alpha_target), torch.maximum(t.alpha_from, t.alpha_target)
        moving = alpha.moving(t)
        assert ((t.alpha >= low) & (t.alpha <= high))[moving].all(), "within the ramp"
        assert (t.alpha == t.alpha_target)[alpha.landed(t)].all(), "lands exactly"
        for stage in (Stage.HOLDING, Stage.FOSSILIZED):
            assert (t.alpha[t.stage == stage] == 1.0).all()
        for stage in Stage:
            if stage not in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED):
                assert (t.alpha[t.stage == stage] == 0.0).all(), stage
        assert (t.stage[t.pruning] == Stage.BLENDING).all()
        dormant = t.stage == Stage.DORMANT
        empty = SlotTable.empty(N, S)
        for name, value in t.state_dict().items():
            torch.testing.assert_close(value[dormant], getattr(empty, name)[dormant], equal_nan=True)
        assert (t.blueprint[~dormant] >= 0).all()


TestLife = Life.TestCase


def every_cell() -> SlotTable:
    """Slot 0 of each env in another state of everything that legality may depend on."""
    states = [
        (stage, epochs, value, ramp, pruning)
        for stage, epochs, (value, ramp, pruning) in product(
            Stage,
            (0, 5),
            ((0.0, 0, False), (0.5, 0, False), (1.0, 0, False), (0.5, 3, False), (0.5, 3, True)),
        )
    ]
    table = SlotTable.empty(len(states), S)
    for i, (stage, epochs, value, ramp, pruning) in enumerate(states):
        table.stage[i, 0], table.epochs_in_stage[i, 0] = int(stage), epochs
        table.alpha[i, 0], table.ramp_epochs[i, 0], table.pruning[i, 0] = value, ramp, pruning
        table.blueprint[i, 0] = -1 if stage == Stage.DORMANT else 1
        table.contribution[i, 0] = 0.1
    return table


@pytest.mark.parametrize("gates", ["permissive", "strict"])
@pytest.mark.parametrize("op", list(Op))
def test_legal_is_executed_and_executed_changes_what_it_should(op: Op, gates: str) -> None:
    """Brute force over states x ops: the mask is true exactly where the action takes effect."""
    life = Lifecycle(config(1, seeds__gates=gates, seeds__min_training_epochs=2))
    table = every_cell()
    n = table.shape[0]
    seen = measurements(n)
    table.accuracy_at_stage.fill_(0.3)
    legal = life.legal(table, seen)[:, op, 0]
    before = table.state_dict()
    heads = {"alpha_target": 1, "alpha_speed": 2, "tempo": 1, "blueprint": 1, "style": 2, "alpha_curve": 1}
    executed = act(life, table, seen, *[action(op, 0, **heads)] * n)
    assert torch.equal(executed, legal)
    assert legal.any(), f"{op.name} must be possible somewhere"
    assert legal.all() == (op == Op.WAIT)
    interesting = ("stage", "alpha_target", "ramp_epochs", "pruning", "blueprint")
    changed = torch.stack([getattr(table, name)[:, 0] != before[name][:, 0] for name in interesting]).any(0)
    if op != Op.WAIT:
        assert torch.equal(changed, legal)


def grown(life: Lifecycle, table: SlotTable, seen: Measurements, target: int = 2) -> None:
    """Env 0, slot 0 from germination to the first epoch of BLENDING, the others waiting."""
    act(life, table, seen, action(Op.GERMINATE, blueprint=3, style=1, tempo=0))
    while not life.legal(table, seen)[0, Op.ADVANCE, 0]:
        life.advance(table, seen)
    act(life, table, seen, action(Op.ADVANCE, alpha_target=target))


def one_env(**changes: object) -> tuple[Lifecycle, SlotTable, Measurements]:
    return Lifecycle(config(1, **changes)), SlotTable.empty(1, 1), measurements(1, 1)


def test_a_whole_life_epoch_by_epoch() -> None:
    life, table, seen = one_env(episode_epochs=24)
    assert life.min_training_epochs == 2, "a twelfth of the episode"
    story = [(Op.GERMINATE, Stage.GERMINATED, 0.0)]
    story += [(Op.WAIT, Stage.TRAINING, 0.0), (Op.ADVANCE, Stage.TRAINING, 0.0)]
    story += [(Op.ADVANCE, Stage.BLENDING, 1 / 3), (Op.WAIT, Stage.BLENDING, 2 / 3)]
    story += [(Op.WAIT, Stage.BLENDING, 1.0), (Op.WAIT, Stage.HOLDING, 1.0)]
    story += [(Op.FOSSILIZE, Stage.HOLDING, 1.0), (Op.FOSSILIZE, Stage.FOSSILIZED, 1.0)]
    story += [(Op.PRUNE, Stage.FOSSILIZED, 1.0)]
    for epoch, (op, stage, value) in enumerate(story):
        life.advance(table, seen)
        if epoch == 8:
            table.record_contribution(torch.tensor([[0.03]]))
        act(life, table, seen, action(op, blueprint=2, tempo=0, alpha_target=2))
        assert table.stage[0, 0] == stage, f"epoch {epoch}"
        assert float(table.alpha[0, 0]) == pytest.approx(value), f"epoch {epoch}"
        assert table.age[0, 0] == epoch


def test_pruning_fades_freezes_closes_and_frees() -> None:
    life, table, seen = one_env(seeds__embargo_epochs=3)
    grown(life, table, seen)
    for _ in range(3):
        life.advance(table, seen)
        act(life, table, seen, action(Op.WAIT))
    assert table.stage[0, 0] == Stage.HOLDING
    life.advance(table, seen)
    act(life, table, seen, action(Op.PRUNE, alpha_speed=1))
    seen_stages = []
    for _ in range(9):
        seen_stages.append((Stage(int(table.stage[0, 0])).name, round(float(table.alpha[0, 0]), 3)))
        life.advance(table, seen)
        act(life, table, seen, action(Op.WAIT))
    assert seen_stages == [
        ("BLENDING", 0.667),
        ("BLENDING", 0.333),
        ("BLENDING", 0.0),
        ("PRUNED", 0.0),
        ("EMBARGOED", 0.0),
        ("EMBARGOED", 0.0),
        ("EMBARGOED", 0.0),
        ("RESETTING", 0.0),
        ("DORMANT", 0.0),
    ]


@pytest.mark.parametrize("speed", range(len(ALPHA_SPEEDS)))
def test_an_immature_seed_is_pruned_at_once(speed: int) -> None:
    life, table, seen = one_env()
    act(life, table, seen, action(Op.GERMINATE, blueprint=1))
    life.advance(table, seen)
    act(life, table, seen, action(Op.PRUNE, alpha_speed=speed))
    assert table.stage[0, 0] == Stage.PRUNED


def test_alpha_is_retargeted_only_when_it_rests() -> None:
    life, table, seen = one_env()
    grown(life, table, seen, target=0)
    lower = action(Op.SET_ALPHA, alpha_target=1, alpha_speed=0)
    assert not act(life, table, seen, lower)[0], "still moving"
    for _ in range(3):
        life.advance(table, seen)
        act(life, table, seen, action(Op.WAIT))
    assert (int(table.stage[0, 0]), float(table.alpha[0, 0])) == (Stage.BLENDING, 0.5)
    assert act(life, table, seen, action(Op.SET_ALPHA, alpha_target=2, alpha_speed=0))[0]
    assert float(table.alpha[0, 0]) == 1.0
    life.advance(table, seen)
    assert table.stage[0, 0] == Stage.HOLDING
    act(life, table, seen, lower)
    assert table.stage[0, 0] == Stage.BLENDING
    assert float(table.alpha[0, 0]) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("gate", "check", "spoil"),
    [
        ("G2", "gradient_measured", {"norm": float("nan")}),
        ("G2", "not_exploding", {"norm": 1e3}),
        ("G2", "healthy", {"health": 0.6}),
        ("G2", "improved", {"accuracy": 0.5004}),
        ("G2", "gradient_ratio", {"norm": 0.09}),
    ],
)
def test_each_strict_gate_check_can_stop_a_seed(gate: str, check: str, spoil: dict[str, float]) -> None:
    life = Lifecycle(config(1, seeds__gates="strict", seeds__min_training_epochs=1))
    table = SlotTable.empty(1, 1)
    table.stage[0, 0], table.epochs_in_stage[0, 0], table.accuracy_at_stage[0, 0] = (
        int(Stage.TRAINING),
        1,
        0.5,
    )
    assert passed(life.gates(table, measurements(1, 1, accuracy=0.6))[gate])[0, 0]
    checks = life.gates(table, measurements(1, 1, **({"accuracy": 0.6} | spoil)))[gate]
    failed = {name for name, ok in checks.items() if not ok[0, 0]}
    assert check in failed
    assert (
        failed <= {check, "not_exploding", "gradient_ratio"}
        if spoil.get("norm") != spoil.get("norm")
        else failed == {check}
    )


@pytest.mark.parametrize(
    ("option", "value", "gate", "check"),
    [
        ("min_health", 0.95, "G2", "healthy"),
        ("min_health", 0.95, "G5", "healthy"),
        ("max_gradient_norm", 0.4, "G2", "not_exploding"),
        ("min_accuracy_gain", 0.2, "G2", "improved"),
        ("min_gradient_ratio", 0.6, "G2", "gradient_ratio"),
        ("min_contribution", 0.05, "G5", "contributes"),
    ],
)
def test_limit_of_each_gate_is_an_option(option: str, value: float, gate: str, check: str) -> None:
    seen, table = measurements(1, 1, health=0.9, accuracy=0.6), SlotTable.empty(1, 1)
    table.accuracy_at_stage[0, 0], table.contribution[0, 0] = 0.5, 0.03

    def holds(**limits: float) -> bool:
        options = {f"gates__{name}": limit for name, limit in limits.items()}
        life = Lifecycle(config(1, seeds__gates="strict", **options))
        return bool(life.gates(table, seen)[gate][check][0, 0])

    assert holds()
    assert not holds(**{option: value})


def test_strict_fossilising_needs_a_contribution() -> None:
    life = Lifecycle(config(1, seeds__gates="strict"))
    table = SlotTable.empty(1, 3)
    table.stage.fill_(int(Stage.HOLDING))
    table.contribution[0] = torch.tensor([0.02, 0.005, float("nan")])
    assert life.legal(table, measurements(1, 3))[0, Op.FOSSILIZE].tolist() == [True, False, False]


def plantable(stages: list[Stage], **options: object) -> bool:
    life = Lifecycle(config(1, **{f"seeds__{name}": value for name, value in options.items()}))
    table = SlotTable.empty(1, 1 + len(stages))
    table.stage[0, 1:] = torch.tensor(stages, dtype=torch.int64)
    seen = measurements(1, 1 + len(stages))
    legal = bool(life.legal(table, seen)[0, Op.GERMINATE, 0])
    assert bool(act(life, table, seen, action(Op.GERMINATE, blueprint=1))[0]) == legal
    assert (table.stage[0, 0] == Stage.GERMINATED) == legal
    return legal


@pytest.mark.parametrize("blueprint", [-1, 2, 99])
def test_missing_blueprint_fails_g0_by_name(blueprint: int) -> None:
    life = Lifecycle(config(1, seeds__blueprints=("norm", "attention")))
    table, seen = SlotTable.empty(2, 2), measurements(2, 2)
    checks = life.gates(table, seen, torch.tensor([1, blueprint]))["G0"]
    assert checks["blueprint_present"].tolist() == [[True, True], [False, False]]
    assert {name for name, holds in checks.items() if not holds[1, 0]} == {"blueprint_present"}
    rows = [action(Op.GERMINATE, blueprint=code) for code in (1, blueprint)]
    assert act(life, table, seen, *rows).tolist() == [True, False]
    assert table.stage.tolist() == [[Stage.GERMINATED, Stage.DORMANT], [Stage.DORMANT, Stage.DORMANT]]


@pytest.mark.parametrize("stage", Stage)
def test_seeds_on_their_way_count_towards_max_live(stage: Stage) -> None:
    assert plantable([stage, stage])
    assert plantable([stage], max_live=2)
    assert plantable([stage, stage], max_live=2) == (stage not in LIVE)


@pytest.mark.parametrize("stage", Stage)
def test_one_at_a_time_waits_for_immature_seeds(stage: Stage) -> None:
    young = stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING)
    assert plantable([Stage.HOLDING, stage], one_at_a_time=True) == (not young)


def test_contributions_keep_value_velocity_and_age() -> None:
    table = SlotTable.empty(1, 2)
    nan = float("nan")
    for measured in ([0.1, nan], [0.3, nan], [nan, 0.2]):
        table.record_contribution(torch.tensor([measured]))
    torch.testing.assert_close(table.contribution, torch.tensor([[0.3, 0.2]]))
    torch.testing.assert_close(table.contribution_velocity, torch.tensor([[0.2, nan]]), equal_nan=True)
    assert table.contribution_age.tolist() == [[1, 0]]
