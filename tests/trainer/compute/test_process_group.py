"""Several processes train one run: the same numbers as one, and a clear end where one of them is lost."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import SeedGerminateParams, SeedPruneParams
from esper_overwatch.trainer import loop
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import (
    ProcessGroup,
    RankLostError,
    RanksError,
    choose_backend,
)
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.control.seed_control import SeedControl
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.episode_table import PolicyEvaluation
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.ranks.rank_report import RankReport, decode, encode, merge_reports
from esper_overwatch.trainer.telemetry.round_events import update_event
from esper_overwatch.trainer.telemetry.transfer import HostFrame
from tests.protocol.sshd import free_ports

CONFIG = configured(
    sets=[
        "envs.count=8",
        "envs.threads=1",
        "envs.group_size=4",
        "episode_epochs=4",
        "task.batches_per_epoch=2",
        "task.batch_size=16",
        "ppo.epochs=3",
        "ppo.target_kl=0.0002",
        "policy.hidden=16",
    ]
)
ROUNDS = 2


class Recording:
    """A `Hooks` that keeps what it sees."""

    layer_envs = None

    def __init__(self) -> None:
        self.frames: list[HostFrame] = []
        self.updates: list[UpdateStatistics] = []
        self.evaluations: list[PolicyEvaluation] = []
        self.best: list[bool] = []

    def wants_round(self, finished: int) -> bool:
        return finished < ROUNDS

    def on_round_begin(self, round: int) -> None: ...

    def on_epoch_begin(self, epoch: int, epochs: int) -> None: ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def on_phase_times(self, seconds: dict[str, float]) -> None: ...

    def on_frame(self, frame: HostFrame, layers: Any) -> None:
        self.frames.append(frame)

    def on_epoch_end(self, round: int, epoch: int) -> None: ...

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:
        assert update is not None
        self.updates.append(update)

    def on_progress(self, done: int, total: int) -> None: ...

    def on_round_evaluated(
        self, round: int, evaluations: Sequence[PolicyEvaluation], *, is_best: bool
    ) -> None:
        self.evaluations += evaluations
        self.best.append(is_best)


def start_ranks(count: int, rank: Callable[..., None], *arguments: object) -> None:
    """Run it in so many processes, forked from one that has imported this module."""
    multiprocessing.set_forkserver_preload([__name__])
    mp.start_processes(rank, arguments, count, start_method="forkserver")  # type: ignore[no-untyped-call]


def train(world: ProcessGroup, folder: Path) -> None:
    """Train the whole run in this world and leave what this rank has seen in the folder."""
    torch.set_num_threads(1)
    trainer = Trainer(CONFIG, load("digits"), torch.device("cpu"), Execution.as_configured(CONFIG), world)
    assert trainer.agent.ppo is not None
    network, moments = trainer.agent.ppo.network.double(), trainer.agent.ppo._minibatch.moments
    moments[:2] = [[tensor.double() for tensor in part] for part in moments[:2]]
    seen = Recording()
    trainer.run(seen)
    torch.save(
        {
            "losses": np.stack([f["train_loss"] for f in seen.frames if "train_loss" in f], 1),
            "returns": np.stack([f["reward"] for f in seen.frames if "reward" in f], 1),
            "updates": [vars(update_event(update)) for update in seen.updates],
            "network": network.state_dict(),
        },
        folder / f"{world.size}-{world.rank}.pt",
    )


def one_of_two(rank: int, port: int, folder: Path, replays: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    if replays:
        from tests.trainer.compute.test_cuda_graphs import record

        loop.CudaGraphs = lambda on: CudaGraphs(on=True, capture=record)  # type: ignore[misc, assignment]
    world = ProcessGroup.join()
    train(world, folder)
    world.leave()


def seen(folder: Path, name: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=False)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("replays", [False, True])
def test_two_ranks_train_as_one(tmp_path: Path, replays: bool) -> None:
    train(ProcessGroup(), tmp_path)
    start_ranks(2, one_of_two, free_ports(), tmp_path, replays)
    alone, first, second = (seen(tmp_path, name) for name in ("1-0", "2-0", "2-1"))
    for column in ("losses", "returns"):
        np.testing.assert_array_equal(np.concatenate([first[column], second[column]]), alone[column])
    for name, value in alone["network"].items():
        torch.testing.assert_close(first["network"][name], value, rtol=1e-9, atol=1e-11)
        assert torch.equal(first["network"][name], second["network"][name])
    for mine, known in zip(first["updates"], alone["updates"], strict=True):
        for name in (
            "policy_loss",
            "value_loss",
            "entropy",
            "approx_kl",
            "ratio_min",
            "ratio_max",
            "grad_norm",
        ):
            assert mine[name] == pytest.approx(known[name], rel=1e-9, abs=1e-12), name
        assert mine["head_clip_fraction"] == pytest.approx(known["head_clip_fraction"])
    stops = [
        [u["minibatches"] for u in each["updates"] if u["early_stop"]] for each in (alone, first, second)
    ]
    assert stops[0]
    assert stops == [stops[0]] * 3, "all ranks stop at the same minibatch"


ACTS = (
    SeedGerminateParams(env=1, slot="r0c0", blueprint="conv_light"),
    SeedGerminateParams(env=6, slot="r0c1", blueprint="norm"),
    SeedGerminateParams(env=6, slot="r0c1", blueprint="attention"),
    SeedPruneParams(env=7, slot="r0c0"),
)
"""Of envs of both ranks; the last two are not possible."""


class Acting(Recording):
    """Acts by hand in the first epoch, on every rank."""

    def __init__(self, seed_control: SeedControl) -> None:
        super().__init__()
        self._seed_control = seed_control
        self.outcomes: list[str] = []

    def on_epoch_end(self, round: int, epoch: int) -> None:
        if (round, epoch) != (1, 1):
            return
        for params in ACTS:
            self._seed_control.check(params)
            action = self._seed_control.action_of(params)
            try:
                stage, frame = self._seed_control.execute(action)
                self.on_frame(frame, ())
                self.outcomes.append(stage.name)
            except RequestError as error:
                self.outcomes.append(f"{error.kind}: {error.message}")

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None: ...


def act_by_hand(world: ProcessGroup, folder: Path) -> None:
    torch.set_num_threads(1)
    config = msgspec.structs.replace(CONFIG, policy=msgspec.structs.replace(CONFIG.policy, kind="no_growth"))
    trainer = Trainer(config, load("digits"), torch.device("cpu"), Execution.as_configured(config), world)
    seen = Acting(SeedControl(trainer, world))
    trainer.run(seen)
    columns = {
        name: np.stack([frame[name] for frame in seen.frames if name in frame], 1)
        for name in ("train_loss", "val_loss", "stage", "blueprint")
    }
    torch.save(columns | {"outcomes": seen.outcomes}, folder / f"{world.size}-{world.rank}.pt")


def one_of_two_by_hand(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    world = ProcessGroup.join()
    act_by_hand(world, folder)
    world.leave()


@pytest.mark.nightly
def test_seeds_by_hand_on_two_ranks_are_those_on_one(tmp_path: Path) -> None:
    act_by_hand(ProcessGroup(), tmp_path)
    start_ranks(2, one_of_two_by_hand, free_ports(), tmp_path)
    alone, first, second = (seen(tmp_path, name) for name in ("1-0", "2-0", "2-1"))
    assert alone["outcomes"] == [
        "GERMINATED",
        "GERMINATED",
        "wrong_state: env 6 slot r0c1 is GERMINATED: GERMINATE is not possible there now",
        "wrong_state: env 7 slot r0c0 is DORMANT: PRUNE is not possible there now",
    ]
    assert first.pop("outcomes") == second.pop("outcomes") == alone.pop("outcomes")
    assert alone["stage"][1, :, 0].any()
    assert alone["stage"][6, :, 1].any()
    for name, column in alone.items():
        np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), column, err_msg=name)


def one_that_leaves(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    world = ProcessGroup.join()
    if rank == 1:
        os._exit(0)
    with pytest.raises(RankLostError, match=r"rank 0 of 2: rank 1 \(pid \d+\) on \S+ is gone"):
        world.receive_order()
    (folder / "told").touch()
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_is_gone_is_named(tmp_path: Path) -> None:
    start_ranks(2, one_that_leaves, free_ports(), tmp_path)
    assert (tmp_path / "told").exists()


def test_envs_and_minibatches_must_divide() -> None:
    ProcessGroup(0, 2).check_split(CONFIG)
    with pytest.raises(RanksError, match=r"envs\.count = 8: 3 ranks need a multiple of 3, and at least 6"):
        ProcessGroup(0, 3).check_split(CONFIG)
    with pytest.raises(RanksError, match="at least 16"):
        ProcessGroup(0, 8).check_split(CONFIG)


def test_reports_merge_columns_by_env_and_layers_by_name() -> None:
    def report(layers: list[str], first: int) -> RankReport:
        frame = {
            "op": np.arange(first, first + 2),
            "stage": np.full((2, 3), first, np.int64),
            "layer.grad_norm": np.full((len(layers), 2), first, np.float32),
        }
        return decode(encode(RankReport.of(frame, layers)))

    whole, names = merge_reports([report(["host", "a"], 0), report(["host", "b"], 2)])
    assert names == ["host", "a", "b"]
    assert whole["op"].tolist() == [0, 1, 2, 3]
    assert whole["stage"].shape == (4, 3)
    nan = float("nan")
    expected = [[0, 0, 2, 2], [0, 0, nan, nan], [nan, nan, 2, 2]]
    np.testing.assert_array_equal(whole["layer.grad_norm"], np.array(expected, np.float32))


def one_that_reports(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "3"}
    group = ProcessGroup.join()
    for size in (5, 0, 3_000_000):
        gathered = group.gather_bytes(bytes([rank]) * size * rank)
        assert gathered == ([] if rank else [bytes([each]) * size * each for each in range(3)])
    (folder / str(rank)).touch()


@pytest.mark.slow
def test_reports_go_to_rank_zero_alone(tmp_path: Path) -> None:
    start_ranks(3, one_that_reports, free_ports(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


LAST_EXCHANGE = """
import os
import sys
from esper_overwatch.trainer.compute.process_group import ProcessGroup

for port in sys.argv[1:]:
    ranks = []
    for rank in "01":
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": "2"}
            group = ProcessGroup.join()
            for _ in range(20):
                group.receive_order() if group.rank else group.broadcast_order(b"order")
            sys.exit()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    assert codes == [0, 0], codes
"""


@pytest.mark.slow
def test_ranks_exit_right_after_an_exchange() -> None:
    ports = [str(free_ports()) for _ in range(3)]  # one exit in two aborted
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LAST_EXCHANGE, *ports]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_layers_that_a_rank_lacks_are_nan() -> None:
    with_layers = RankReport.of({"op": np.zeros(1), "layer.grad_norm": np.ones((1, 1), np.float32)}, ["host"])
    whole, _ = merge_reports([with_layers, RankReport.of({"op": np.zeros(1)})])
    np.testing.assert_array_equal(whole["layer.grad_norm"], [[1.0, np.nan]])


@pytest.mark.parametrize(
    ("devices", "ranks", "backend"),
    [
        (0, 2, "gloo"),
        (1, 2, "cpu:gloo,cuda:gloo"),
        (2, 2, "cpu:gloo,cuda:nccl"),
        (4, 2, "cpu:gloo,cuda:nccl"),
    ],
)
def test_ranks_that_share_a_gpu_do_without_nccl(devices: int, ranks: int, backend: str) -> None:
    environ = {"LOCAL_WORLD_SIZE": str(ranks)}
    assert choose_backend(devices, environ) == backend
    assert environ.get("TORCH_NCCL_BLOCKING_WAIT") == ("1" if "nccl" in backend else None)


def test_one_gpu_by_number_is_refused_for_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = configured(sets=["device=cuda:0", "envs.count=8"])
    with pytest.raises(RanksError, match=r"device = cuda:0: is one device"):
        ProcessGroup(0, 2).check_split(config)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    ProcessGroup(0, 2).check_split(config)
