"""How often a round of training waits for a CUDA device, copies and launches: at most as written down here.

The device is simulated, so that no GPU is needed. After a change that needs fewer, lower the limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import mostly_nightly

from .fake_cuda import build, find_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA's part itself"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the simulated device is for Linux"),
]
ROOT = Path(__file__).parents[2]
ALIKE = (
    "envs.convolution=grouped",
    "envs.threads=1",
    "episode_epochs=4",
    "validation.shapley_every=0",
)
SMALL = (
    *ALIKE,
    "envs.count=4",
    "task.batches_per_epoch=2",
    "task.batch_size=16",
    "ppo.minibatches=2",
    "ppo.epochs=2",
)
"""4 envs with two steps an epoch; elsewhere the default preset's 12 steps and updates hold."""
LONG = ("episode_epochs=10",)
"""So long that all graphs of the last epoch were captured before."""
EVALUATED = (
    *(*SMALL, "envs.plan=masked"),
    *("evaluation.rounds=1", "evaluation.hosts=4", "evaluation.rivals=fixed"),
)
CASES = {
    "gather": SMALL,
    "masked": (*SMALL, *LONG, "envs.plan=masked"),
    "shapley": (*SMALL, "envs.plan=masked", "validation.shapley_every=1"),
    "decisions": (*SMALL, "envs.plan=masked", "envs.copies=2", "policy.decision_epochs=0,2"),
    "fp16": (*SMALL, "envs.plan=masked", "amp.dtype=fp16"),
    "bf16": (*SMALL, "envs.plan=masked", "amp.dtype=bf16"),
    "mixture": (
        *(*SMALL, *LONG, "envs.plan=masked", "envs.count=8", "envs.copies=2", "policy.decision_epochs=0,2"),
        "task.mixture=digits,texture,layout,quadrants,histogram",
    ),
    "ranks": (*SMALL, *LONG, "envs.plan=masked", "--ranks"),
    "layers": (*SMALL, "envs.plan=masked", "--layers"),
    "evaluation": EVALUATED,
    "evaluation among ranks": (*EVALUATED, "envs.count=8", "--ranks"),
    "evaluation of a mixture": (*EVALUATED, "envs.count=8", "task.mixture=digits,texture,layout,histogram"),
    "augmented": (*SMALL, "task.augment=crop,flip"),
    "text": (*SMALL, "task.dataset=text"),
    "masked, 16 envs": (*ALIKE, *LONG, "envs.count=16", "envs.plan=masked"),
    "masked, 64 envs": (*ALIKE, *LONG, "envs.count=64", "envs.plan=masked"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_cuda"))


def simulate(library: Path, *words: str) -> dict[str, Any]:
    """What the simulator tells of a round."""
    command = [sys.executable, "-m", "tests.gpu.simulator", str(library), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


KINDS = ("waits", "copies", "launches", "train", "validate")
LIMITS: dict[str, dict[str, tuple[int, ...]]] = {
    "gather": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 11, 5_640, 2_660, 110),
        "epoch 1": (1, 12, 1_990, 490, 110),
        "epoch 2": (1, 22, 1_480, 670, 200),
        "epoch 3": (1, 27, 1_570, 890, 230),
        "update": (2, 17, 3_590, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 17, 120, 0, 0),
    },
    "masked": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 7_500, 3_920, 310),
        "epoch 4": (1, 4, 400, 20, 20),
        "epoch 9": (1, 3, 240, 20, 20),
        "update": (2, 17, 4_080, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 31, 250, 0, 0),
    },
    "decisions": {
        "begin": (1, 4, 2_330, 0, 0),
        "epoch 0": (1, 4, 7_900, 3_920, 310),
        "epoch 1": (1, 4, 3_400, 490, 240),
        "epoch 2": (1, 4, 1_380, 20, 720),
        "epoch 3": (1, 3, 910, 20, 680),
        "update": (2, 17, 3_300, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 15, 110, 0, 0),
    },
    "fp16": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 8_490, 4_890, 330),
        "epoch 1": (1, 4, 2_200, 490, 260),
        "epoch 2": (1, 4, 1_230, 30, 840),
        "epoch 3": (1, 3, 1_040, 30, 800),
        "update": (2, 17, 3_590, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 17, 150, 0, 0),
    },
    "bf16": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 7_740, 4_140, 330),
        "epoch 1": (1, 4, 2_190, 490, 260),
        "epoch 2": (1, 4, 1_220, 20, 840),
        "epoch 3": (1, 3, 1_030, 20, 800),
        "update": (2, 17, 3_590, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 17, 150, 0, 0),
    },
    "mixture": {
        "begin": (1, 8, 2_340, 0, 0),
        "epoch 0": (1, 4, 6_660, 2_660, 310),
        "epoch 4": (1, 4, 2_550, 1_410, 810),
        "epoch 9": (1, 3, 240, 20, 20),
        "update": (2, 17, 3_300, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 29, 270, 0, 0),
    },
    "shapley": {
        "test": (2, 18, 120, 0, 0),
        "shapley": (4, 14, 230, 0, 0),
    },
    "ranks": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 9_670, 6_130, 310),
        "epoch 4": (1, 4, 1_060, 20, 680),
        "epoch 9": (1, 3, 250, 20, 20),
        "update": (2, 17, 4_140, 0, 0),
        "update again": (2, 3, 230, 0, 0),
        "test": (3, 19, 160, 0, 0),
    },
    "layers": {
        "epoch 0": (1, 5, 8_150, 4_550, 310),
        "epoch 2": (1, 5, 1_760, 660, 720),
        "epoch 3": (1, 4, 1_570, 660, 680),
    },
    "evaluation": {
        "epoch 3": (1, 3, 910, 20, 680),
        "evaluate again": (14, 60, 20_240, 5_630, 1_990),
        "evaluate third": (7, 26, 3_720, 90, 60),
    },
    "evaluation among ranks": {
        "evaluate again": (14, 60, 20_220, 6_460, 1_990),
        "evaluate third": (7, 26, 3_720, 90, 60),
    },
    "evaluation of a mixture": {
        "evaluate again": (14, 71, 26_760, 12_060, 2_040),
        "evaluate third": (7, 31, 8_130, 4_380, 80),
    },
    "augmented": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 11, 3_630, 660, 330),
        "epoch 1": (1, 12, 2_210, 700, 330),
        "epoch 2": (1, 22, 1_700, 880, 420),
        "epoch 3": (1, 27, 1_790, 1_110, 450),
        "update": (2, 17, 3_590, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 17, 120, 0, 0),
    },
    "text": {
        "begin": (1, 4, 2_060, 0, 0),
        "epoch 0": (1, 11, 3_420, 700, 60),
        "epoch 1": (1, 12, 2_130, 770, 60),
        "epoch 2": (1, 22, 1_610, 930, 100),
        "epoch 3": (1, 27, 1_660, 1_130, 120),
        "update": (2, 17, 3_590, 0, 0),
        "update again": (2, 3, 210, 0, 0),
        "test": (3, 17, 120, 0, 0),
    },
    "masked, 16 envs": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 5_830, 2_250, 310),
        "epoch 4": (1, 4, 2_300, 1_440, 20),
        "epoch 9": (1, 3, 1_110, 60, 840),
        "update": (8, 23, 4_130, 0, 0),
        "update again": (8, 9, 270, 0, 0),
        "test": (3, 45, 390, 0, 0),
    },
    "masked, 64 envs": {
        "begin": (1, 4, 1_920, 0, 0),
        "epoch 0": (1, 4, 5_390, 1_810, 310),
        "epoch 4": (1, 4, 750, 60, 20),
        "epoch 9": (1, 3, 280, 60, 20),
        "update": (8, 23, 4_130, 0, 0),
        "update again": (8, 9, 270, 0, 0),
        "test": (3, 57, 510, 0, 0),
    },
}
"""By case and section `KINDS`: as measured, with a tenth to spare since seeds come and go.

The launches of training and of validation are among those of their epoch; a replayed graph is one. The waits:
an epoch's transfer; in an update one for each pass but the last, as ppo.target_kl has it, and one for its
statistics; in a test the topology, its accuracies, and the returns; for Shapley values the envs, their
seeds, and the coalitions of each group; in an evaluation, for each policy (two again, one the third
time), a transfer at the beginning and after each epoch, the topology, and what became of the hosts. In
their first two calls graphs are captured and compared: in epochs 0 and 1 and in the first two updates, those
of births and of capacities later.
"""
COMPUTED = {
    "gather": (1_930, 100),
    "masked": (2_230, 310),
    "decisions": (3_090, 560),
    "fp16": (4_290, 450),
    "bf16": (3_550, 450),
    "mixture": (2_240, 620),
    "shapley": (230, 60),
    "ranks": (2_240, 200),
    "layers": (3_750, 570),
    "evaluation": (12_640, 410),
    "evaluation among ranks": (12_640, 240),
    "evaluation of a mixture": (17_050, 590),
    "augmented": (2_150, 110),
    "text": (1_980, 680),
    "masked, 16 envs": (5_930, 3_900),
    "masked, 64 envs": (5_930, 15_100),
}
"""By case, in the last epoch or the section that `LAST` says, likewise: kernels, those of graphs too, and the
megabytes that they read and write."""
LAST = {"shapley": "shapley"} | {case: "evaluate third" for case in CASES if case.startswith("evaluation")}
MAX_EPOCH_LAUNCHES = 1_000
"""Aim for an epoch whose graphs are captured, at 64 envs of the default preset and for a mixture. Which
epochs need none that is new depends on the policy's choices, whose last bits are the processor's.
"""


@pytest.mark.parametrize("case", mostly_nightly(CASES, "masked"))
def test_round_waits_copies_and_launches_no_more_than_written_down(library: Path, case: str) -> None:
    told = simulate(library, *CASES[case])
    counts, places = told["counts"], told["places"]
    assert told["races"] == {}
    for section, limits in LIMITS[case].items():
        for kind, limit in zip(KINDS, limits, strict=True):
            found = counts[section].get(kind, 0)
            assert found <= limit, f"{section}: {found} {kind}, at most {limit}; {places.get(section)}"
    last = counts[LAST.get(case, "epoch 9" if LONG[0] in CASES[case] else "epoch 3")]
    kernels, megabytes = COMPUTED[case]
    assert last["kernels"] <= kernels
    assert last["bytes"] <= megabytes * 1_000_000
    if LONG[0] in CASES[case]:
        settled = min((counts[f"epoch {i}"] for i in range(10)), key=lambda epoch: int(epoch["launches"]))
        assert settled["launches"] < MAX_EPOCH_LAUNCHES
        assert settled["kernels"] > 5 * settled["launches"], "those of graphs are counted"
    assert counts["epoch 0"]["waits"] == 1, "that of the transfer is seen"
    captured = counts["captures"]
    found = set(captured)
    assert found == {"launches", "kernels", "bytes", "ns"}, (
        f"a capture holds no copy from or to the host: {places}"
    )


def test_groups_and_telemetry_overlap_and_events_order_them(library: Path) -> None:
    told = simulate(library, *SMALL, "envs.plan=masked", "envs.group_size=2", "--faults")
    overlaps = {tuple(pair) for pair in told["overlaps"]}
    for epoch in range(4):
        assert (f"epoch {epoch} validate 0", f"epoch {epoch} train 1") in overlaps
    for epoch in range(3):
        assert (f"epoch {epoch} telemetry", f"epoch {epoch + 1} train 0") in overlaps
        assert told["counts"][f"epoch {epoch}"]["waits"] == 1, "for the topology"
    assert told["reported"] == ["begin", "epoch 1", "epoch 2", "epoch 3", "epoch 3"], "behind what comes next"
    assert set(told["races"]) == {"epoch 2", "epoch 3"}, "behind the faults, and nowhere else"
    assert all("is free for others before it is done" in race for race in told["races"]["epoch 2"])
