"""Validation of which graphs are made measures what validation by the tree of the epoch's seeds does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import NUM_CHECKED_CALLS, CudaGraphs
from esper_overwatch.trainer.hosts import validation
from esper_overwatch.trainer.hosts.cnn import CNN
from esper_overwatch.trainer.hosts.contribution_schedule import select_contributions, select_pairs
from esper_overwatch.trainer.hosts.masked_plan import SHARES, capacities, placed
from esper_overwatch.trainer.hosts.masked_validation import MaskedTree
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.seed_pool import SeedPool
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS
from esper_overwatch.trainer.seeds.table import SlotTable
from tests.cases import mostly_nightly
from tests.trainer.compute.test_cuda_graphs import record
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
CPU = torch.device("cpu")
DATA = tiny()
HOSTS, EPOCHS = 5, 3
"""Epochs of each topology."""
CASES: dict[str, dict[str, Any]] = {
    "cnn": {},
    "few contributions": {"validation__counterfactual_budget": 0.25},
    "all of them": {"validation__counterfactual_budget": 100.0},
    "two groups": {"envs__group_size": 3},
    "resnet": {"host__family": "resnet", "host__blocks": 2},
    "two rows of slots": {"host__slot_rows": 2, "host__channels": (8, 4)},
    "fossils": {"reward__only_fossilized": True, "reward__final_epochs": 9},
}


def population(**changes: Any) -> Population:
    made = Population(config(HOSTS, envs__plan="masked", **changes), DATA, CPU, dtype=torch.float64)
    plant(made, rows(every_state(slots=len(made.slots)), list(range(HOSTS))))
    return made


def play(made: Population, epochs: int) -> list[dict[str, torch.Tensor]]:
    """Epochs of two topologies: what each measured, and the statistics of the batch norms after it."""
    found = []
    table = made.table
    for epoch in range(2 * epochs):
        columns = (table.stage, table.blueprint, table.style, table.contribution_age)
        made.set_topology(*(column.numpy() for column in columns))
        measured = vars(made.run_epoch(1, epoch).measurements)
        found.append({k: v.clone() for k, v in measured.items()} | made.state_dict()["buffers"])
        if epoch == epochs - 1:
            table.stage[:3, 1:] = int(Stage.DORMANT)
            table.blueprint[:3, 1:] = -1
            table.alpha[:3, 1:] = 0.0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_nightly(CASES, "cnn"))
def test_replayed_validation_measures_what_the_tree_does(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(validation, "MAX_CHUNK_BYTES", 10 * 4 * HOSTS * 512 * 8)  # two chunks and a rest
    plain, replayed = population(**CASES[case]), population(**CASES[case])
    graphs = CudaGraphs(on=True, capture=record)
    replayed.compile(Compiler("off", CPU), graphs)
    for expected, found in zip(play(plain, EPOCHS), play(replayed, EPOCHS), strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, equal_nan=True, atol=1e-6, rtol=1e-6, msg=name)
    programs = graphs.programs
    assert {program.reason for program in programs.values()} == {""}
    chunks = [p.replays for name, p in programs.items() if name.startswith("the validation of")]
    assert chunks == [replays for replays in chunks if replays >= 2 * (EPOCHS - NUM_CHECKED_CALLS)] != []
    for mine, theirs in zip(plain.test(), replayed.test(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@given(st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=40), min_size=1, max_size=4))
def test_capacities_have_room_for_each_seed_once(rows: list[list[int]]) -> None:
    kinds = [np.array(kind) for kind in rows]
    made = capacities(kinds, 4)
    seeds = any((kind >= 0).any() for kind in kinds)
    assert all(len(capacity) == (4 if seeds else 0) for capacity in made)
    for kind, capacity in zip(kinds, made, strict=True):
        rows, places = placed(kind, capacity)
        planned = np.repeat(np.arange(len(capacity)), capacity)
        assert all(
            count in {max(math.ceil(s * len(kind)), min(len(kind), 2)) for s in SHARES} for count in capacity
        )
        for b in range(4 if seeds else 0):
            assert len(set(rows[planned == b])) == capacity[b], "no row comes twice"
        own = np.flatnonzero(kind >= 0)
        assert (rows[places[own]] == own).all()
        assert (planned[places[own]] == kind[own]).all()


@given(
    st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 6.0), st.integers(0, 2**32 - 1), st.integers(0, 3)
)
def test_tree_has_room_for_what_a_budget_allows(
    n: int, slots: int, budget: float, seed: int, epoch: int
) -> None:
    generator = np.random.default_rng(seed)
    stage = generator.choice([int(Stage.HOLDING), int(Stage.TRAINING)], (2 * n, slots), p=[0.8, 0.2])
    topology = Topology.of(stage, np.zeros_like(stage), np.zeros_like(stage))
    measured = select_contributions(topology.blended, np.full(stage.shape, -1), budget)
    pairs = select_pairs(measured, epoch, budget)
    whole = Topology(topology.stage, topology.blueprint, topology.style, measured, pairs)
    model = CNN((2,) * slots, 1, (1, 2, 2), 2)
    tree = MaskedTree(n, SeedPool(model, [BLUEPRINTS["norm"]], batch=2), 2 * n, budget)
    for start in (0, n):
        part = whole.rows(start, start + n)
        packed, capacities = tree.pack(part)
        table = SlotTable.empty(n, slots, CPU)
        made = tree.unpack(torch.from_numpy(packed), capacities, table, torch.float32)
        assert made.owners.shape == (tree.rows[-1],)
        *_, owners, single, pairs = (p.numpy() for p in tree.parts(torch.from_numpy(packed), capacities))
        assert (made.owners.numpy() == owners).all()
        hosts, slot = np.nonzero(part.is_measured)
        assert (owners[single[hosts, slot]] == hosts).all()
        assert ((single >= 0) == part.is_measured).all()
        assert ((pairs >= 0) == (part.pairs | part.pairs.transpose(0, 2, 1))).all()
