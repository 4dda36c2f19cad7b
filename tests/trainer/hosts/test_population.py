"""A population: births, resuming, parameters, statistics of layers, errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op, Stage, Style
from esper_overwatch.trainer.config.host_options import EnvsConfig
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.seed_options import SeedsConfig
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts import seed_pool
from esper_overwatch.trainer.hosts.gradients import DEFAULT_GATES, norm_and_health, row_norms
from esper_overwatch.trainer.hosts.group_statistics import NUM_PROBED_EXAMPLES
from esper_overwatch.trainer.hosts.optimizer import ParameterGroup, StackedSGD, padded_zeros
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS, BlueprintError
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
DATA = tiny()
CPU = torch.device("cpu")


def population(cfg: Config, **options: object) -> Population:
    return Population(cfg, DATA, "cpu", **options)  # type: ignore[arg-type]


def prepare(made: Population) -> None:
    made.set_topology(made.table.stage, made.table.blueprint, made.table.style)


def germinate(made: Population, envs: list[int], slot: int, blueprint: int, style: Style = Style.ADD) -> None:
    made.table.stage[envs, slot] = int(Stage.GERMINATED)
    made.table.blueprint[envs, slot] = blueprint
    made.table.style[envs, slot] = int(style)


def test_the_default_host_has_the_274_parameters_of_the_design() -> None:
    made = Population(Config(), load("digits"), "cpu")
    assert made.parameters_host == 274
    made.begin_episode(1)
    assert made.parameters().tolist() == [274] * 8
    conv_light = Config().seeds.blueprints.index("conv_light")
    germinate(made, [0, 1], 0, conv_light)
    germinate(made, [1], 1, conv_light)
    assert made.parameters().tolist()[:3] == [274 + 593, 1460, 274]
    germinate(made, [2], 0, conv_light, Style.GATE)
    assert made.parameters().tolist()[2] == 274 + 593 + 9


def test_fresh_hosts_depend_on_env_and_round_alone() -> None:
    made, later = population(config(3)), population(config(2), first_env=1)
    made.begin_episode(1)
    later.begin_episode(1)
    name = "block1.conv.weight"
    first = made.state_dict()["weights"][name]
    assert torch.equal(first[1:], later.state_dict()["weights"][name])
    assert not torch.equal(first[0], first[1])
    plant(made, rows(every_state(), [0, 1, 2]), round_=1)
    made.run_epoch(1, 0)
    made.begin_episode(1)
    again = made.state_dict()
    assert torch.equal(again["weights"][name], first)
    assert (again["table"]["stage"] == Stage.DORMANT).all()
    assert all((w == 0).all() for w in again["momentum"].values())
    assert all((w == 0).all() for n, w in again["weights"].items() if n.startswith("r0c"))
    made.begin_episode(2)
    assert not torch.equal(made.state_dict()["weights"][name], first)


def born(envs: list[int], round_: int, epoch: int, slot: int, n: int = 4) -> Tensor:
    made = population(config(n, task__batches_per_epoch=1, host__learning_rate=0))
    made.begin_episode(round_)
    germinate(made, envs, slot, list(BLUEPRINTS).index("conv_light"))
    prepare(made)
    made.run_epoch(round_, epoch)
    return made.state_dict()["weights"][f"r0c{slot}.conv_light"]


def test_a_newborn_seed_depends_on_env_slot_round_and_epoch() -> None:
    weights = born([1, 2], 1, 3, 0)
    assert (weights[[0, 3]] == 0).all(), "where there is no seed there are zeros"
    assert weights[1].abs().max() > 0
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(born([2], 1, 3, 0)[2], weights[2]), "whoever else is born"
    assert not torch.equal(born([1], 2, 3, 0)[1], weights[1])
    assert not torch.equal(born([1], 1, 4, 0)[1], weights[1])


@pytest.mark.parametrize("together", [1, 1000, seed_pool.MAX_DRAWN])
def test_newborns_of_all_hosts_are_those_drawn_by_rows(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_pool, "MAX_DRAWN", together)
    made = population(config(6))
    made.begin_episode(1)
    for kind in range(4):
        germinate(made, [kind], 2 * (kind // 2), kind, Style.GATE if kind % 2 else Style.ADD)
    group, table = made.groups[0], made.table
    keys = torch.arange(18).view(6, 3) * 977
    found = []
    for masked in (False, True):
        weights = {name: w.detach().clone() for name, w in group.weights.items()}
        if masked:
            made.pool.germinate_where_born(weights, table, keys, made.pool.draw_tables(weights, 6))
        else:
            topology = Topology.of(table.stage, table.blueprint, table.style)
            for slot in range(3):
                made.pool.germinate(weights, topology, slot, keys[:, slot])
        found.append(weights)
    assert any((w[3] != 0).any() for name, w in found[0].items() if name.startswith("r0c"))
    for name, weight in found[0].items():
        assert torch.equal(found[1][name], weight), name


def test_a_seed_that_left_leaves_nothing_behind() -> None:
    made = population(config(4))
    plant(made, rows(every_state(), [3, 4, 5, 6]))
    made.run_epoch(1, 0)
    made.table.stage.fill_(int(Stage.EMBARGOED))
    prepare(made)
    made.run_epoch(1, 1)
    state = made.state_dict()
    for part in ("weights", "momentum"):
        assert all((w == 0).all() for name, w in state[part].items() if name.startswith("r0c"))


def act(made: Population, life: Lifecycle, epoch: int, measurements: Measurements) -> None:
    """One scripted epoch of decisions: every env grows in every slot, in its own way."""
    n, slots = made.table.shape
    actions = torch.zeros(n, len(HEAD_NAMES), dtype=torch.int64)
    actions[:, 1] = torch.arange(n).add(epoch) % slots
    actions[:, 2:] = torch.arange(n).add(epoch).unsqueeze(1) % 3
    legal = life.legal(made.table, measurements)
    wanted = (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE, Op.WAIT)
    for env in range(n):
        actions[env, 0] = next(op for op in wanted if legal[env, op, actions[env, 1]])
    life.apply(made.table, actions, legal, measurements)


def play(made: Population, life: Lifecycle, epochs: range, measurements: Measurements) -> Measurements:
    for epoch in epochs:
        life.advance(made.table, measurements)
        act(made, life, epoch, measurements)
        prepare(made)
        measurements = made.run_epoch(1, epoch).measurements
    return measurements


@pytest.mark.parametrize("plan", ["gather", nightly("masked")])
def test_a_resumed_population_goes_on_bit_for_bit(plan: str) -> None:
    cfg = config(5, envs__plan=plan, envs__group_size=2)
    life = Lifecycle(cfg)
    made = population(cfg)
    made.begin_episode(1)
    halfway = play(made, life, range(5), Measurements.unmeasured(5, 3))
    state = made.state_dict()
    assert len(state["table"]["stage"].unique()) > 1, "the script must lead somewhere"
    end = play(made, life, range(5, 12), halfway)
    other = population(cfg)
    other.load_state_dict(state)
    resumed = play(other, life, range(5, 12), halfway)
    for name, value in vars(end).items():
        assert torch.equal(value.nan_to_num(7e7), getattr(resumed, name).nan_to_num(7e7)), name
    for name, value in made.state_dict()["weights"].items():
        assert torch.equal(value, other.state_dict()["weights"][name]), name
    assert not torch.equal(made.table.stage, state["table"]["stage"])


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_layer_statistics_cover_the_requested_envs_and_their_layers(plan: str) -> None:
    cfg = config(4, envs__plan=plan, envs__group_size=2)
    made = population(cfg, dtype=torch.float64)
    made.begin_episode(1)
    conv_light = list(BLUEPRINTS).index("conv_light")
    germinate(made, [0, 3], 1, conv_light)
    prepare(made)
    asked = torch.tensor([True, True, False, True])
    trained = made.run_epoch(1, 0, layers=asked)
    measurements, found = trained.measurements, trained.layers
    assert found is not None
    at = {name: row for row, name in enumerate(found.names)}
    host = found.grad_norm[: len(made.model.specs())]
    assert host[:, 2].isnan().all()
    torch.testing.assert_close(host.norm(dim=0)[asked], measurements.host_grad_norm[asked])
    seed = found.grad_norm[at["r0c1.conv_light.conv.weight"]]
    assert seed.isnan().tolist() == [False, True, True, False]
    names = [name for name in found.names if name.startswith("r0c1.conv_light.")]
    total = found.grad_norm[[at[name] for name in names]].norm(dim=0)
    torch.testing.assert_close(total[[0, 3]], measurements.seed_grad_norm[[0, 3], 1])
    row = at["block0.conv.weight"]
    count = made.groups[0].weights["block0.conv.weight"][0].numel()
    torch.testing.assert_close(found.grad_rms[row] * count**0.5, found.grad_norm[row], equal_nan=True)
    assert (found.grad_max[row] <= found.grad_norm[row])[asked].all()
    assert (found.nonfinite[row] == 0)[asked].all()
    assert made.run_epoch(1, 1).layers is None


@pytest.mark.parametrize(
    ("plan", "shared"),
    [("gather", False), ("masked", True), nightly("gather", True), nightly("masked", False)],
)
def test_what_modules_put_out_is_that_of_each_host_alone(plan: str, shared: bool) -> None:
    cfg = config(
        4,
        envs__plan=plan,
        envs__group_size=2,
        task__shared_batches=shared,
        task__batch_size=NUM_PROBED_EXAMPLES + 8,
    )
    made = population(cfg, dtype=torch.float64)
    made.begin_episode(1)
    germinate(made, [0, 3], 1, list(BLUEPRINTS).index("conv_light"))
    prepare(made)
    asked = torch.tensor([True, True, False, True])
    found = made.run_epoch(1, 0, layers=asked).layers
    assert found is not None
    at = {name: row for row, name in enumerate(found.names)}
    told = [n for n, row in at.items() if not found.activation_rms[row].isnan().all()]
    assert told == ["block0.out", "block1.out", "r0c1.out", "block2.out", "head.out"]
    assert found.activation_rms[at["block0.out"]].isnan().tolist() == [False, False, True, False]
    assert found.activation_rms[at["r0c1.out"]].isnan().tolist() == [False, True, True, False]
    assert found.grad_norm[at["block0.out"]].isnan().all()
    assert found.activation_rms[at["block0.conv.weight"]].isnan().all()
    group = made.groups[1]  # hosts 2 and 3; a seed in TRAINING leaves what passes it as it is
    x = group.batches.at(1, cfg.task.batches_per_epoch - 1)[0][:NUM_PROBED_EXAMPLES]
    with torch.no_grad():
        for block in range(3):
            x = made.model.train_block(block, x, group.weights)
            mine = x.unflatten(1, (2, -1))[:, 1]
            row = at[f"block{block}.out"]
            torch.testing.assert_close(found.activation_rms[row, 3], mine.square().mean().sqrt().float())
            torch.testing.assert_close(found.activation_max[row, 3], mine.abs().max().float())
            share = (mine == 0).double().mean().float()
            torch.testing.assert_close(found.activation_zero_fraction[row, 3], share)
            assert 0.0 < share < 1.0


def test_norms_are_finite_where_squares_overflow_and_health_tells_why() -> None:
    tensors = [torch.full((3, 10), 1e30), torch.tensor([[1.0], [0.0], [float("nan")]]), torch.ones(3, 4)]
    norms = row_norms(tensors)
    torch.testing.assert_close(
        norms[0], torch.full((3,), 1e30 * 10**0.5, dtype=torch.float64), rtol=1e-5, atol=0
    )
    _, health = norm_and_health(norms, torch.ones_like(norms, dtype=torch.bool))
    assert health.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert norms[0, 0] > DEFAULT_GATES.max_gradient_norm
    total, health = norm_and_health(norms, torch.zeros_like(norms, dtype=torch.bool))
    assert total.isnan().all()
    assert health.isnan().all()


def test_optimizer_is_sgd_with_momentum_for_any_gradient_strides() -> None:
    weight = padded_zeros((2, 3, 4), torch.float32).normal_(generator=torch.Generator().manual_seed(1))
    reference = torch.nn.Parameter(weight.clone())
    sgd = torch.optim.SGD([reference], lr=0.1, momentum=0.9)
    weights = {"w": weight, "other": padded_zeros((2,), torch.float32)}
    stacked = StackedSGD(weights, [ParameterGroup(weights, 0.1)], 0.9)
    for step in range(3):
        gradient = torch.arange(24.0).add(step).view(2, 4, 3).transpose(1, 2)
        reference.grad = gradient.contiguous()
        sgd.step()
        stacked.step({"w": gradient})
        torch.testing.assert_close(weight, reference.detach())
    assert (stacked.momentum["other"] == 0).all()


def test_each_row_is_clipped_as_torch_clips_a_network() -> None:
    weight, host = padded_zeros((4, 6), torch.float32), padded_zeros((4, 6), torch.float32)
    groups = [ParameterGroup(["host"], 1.0), ParameterGroup(["seed"], 1.0, 0.5)]
    stacked = StackedSGD({"seed": weight, "host": host}, groups, 0.0)
    gradient = torch.tensor([1e-3, 0.2, 1.0, 1e30]).unsqueeze(1) * torch.arange(1.0, 7.0)
    expected = []
    for row in gradient:
        parameter = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
        parameter.grad = row.double()
        torch.nn.utils.clip_grad_norm_([parameter], 0.5)
        expected.append(-parameter.grad.float())
    before = gradient.clone()
    stacked.step({"seed": gradient, "host": gradient})
    torch.testing.assert_close(weight, torch.stack(expected))
    assert torch.equal(host, -before)
    assert torch.equal(gradient, before)


@pytest.mark.slow
def test_a_seed_that_nobody_stops_does_not_explode() -> None:
    """Isolated, a seed gets no answer to what it puts out: without a clip this one ends in NaN."""
    cfg = Config(envs=EnvsConfig(count=4, threads=1), seeds=SeedsConfig(blueprints=("conv_light",)), seed=3)
    made = Population(cfg, load("digits"), "cpu")
    made.begin_episode(1)
    germinate(made, [0, 1, 2, 3], 1, 0)
    for epoch in range(30):
        prepare(made)
        measurements = made.run_epoch(1, epoch).measurements
        made.table.stage[:, 1] = int(Stage.TRAINING)
    made.close()
    assert measurements.seed_grad_norm[:, 1].isfinite().all()
    steps, host = 30 * cfg.task.batches_per_epoch, cfg.host
    farthest = steps * cfg.seeds.max_grad_norm * host.learning_rate / (1 - host.momentum)
    assert (made.groups[0].weights["r0c1.conv_light"].norm(dim=1) < farthest).all()


def test_an_unknown_blueprint_ends_with_its_name() -> None:
    with pytest.raises(BlueprintError, match="conv_lihgt"):
        population(config(2, seeds__blueprints=["norm", "conv_lihgt"]))
