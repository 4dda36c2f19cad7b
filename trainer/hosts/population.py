"""All hosts of a run: split into groups that train on threads, behind one interface over [N] tensors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.machine.cgroup import count_cores
from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, WITH_SEED, Stage, Style
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import is_known_empty
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.joined_rows import copy_rows_, zero_rows_
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.reward.shapley import ShapleyValues, shapley_values
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

from .contribution_schedule import select_contributions, select_pairs
from .env_tasks import EnvTasks
from .executor import GroupExecutor
from .failed_env import FailedEnvCapture
from .gradients import LayerTensors
from .group_statistics import TrainResult
from .growth_score import SCORES
from .host_group import HostGroup
from .slot_plan import Codes, Topology
from .task_defaults import build_model
from .validation import Coalitions, Score

NOT_IN_SNAPSHOT = ("momentum", "loss_scale", "kept")
"""Parts of the state that a host is not put back to."""


def group_spans(hosts: int, size: int) -> list[tuple[int, int]]:
    """Groups of about `size`, as even as can be; from a size of 2 on none is left with one host alone."""
    groups = -(-hosts // size)
    if size > 1:
        groups = min(groups, max(1, hosts // 2))
    edges = [hosts * i // groups for i in range(groups + 1)]
    return list(pairwise(edges))


class EpochResult(NamedTuple):
    """Outcome of `run_epoch`."""

    measurements: Measurements
    layers: LayerTensors | None
    """Layer statistics of the envs whose layers were asked for."""
    seconds: dict[str, float]
    """Wall time by part: `train`, `validate`, `layers`."""
    scaling: dict[str, Tensor]
    """Loss scales with fp16, [N] each: `loss_scale` after the epoch, `skipped_steps` in it; else empty."""


class GroupEpoch(NamedTuple):
    """A group's outcome of an epoch, and the seconds of its thread."""

    trained: TrainResult
    score: Score
    growth: Tensor | None
    train_seconds: float
    validate_seconds: float


def phase_seconds(groups: list[GroupEpoch], wall: float) -> dict[str, float]:
    """Wall time of an epoch of some groups by part, see `EpochResult.seconds`: as their threads spent it."""
    layers = sum(group.trained.layers_seconds for group in groups)
    parts = {
        "train": sum(group.train_seconds for group in groups) - layers,
        "validate": sum(group.validate_seconds for group in groups),
        "layers": layers,
    }
    share = wall / sum(parts.values())
    return {name: seconds * share for name, seconds in parts.items()}


class Population:
    """N hosts with S slots each.

    One epoch of the run calls `set_topology`, then `run_epoch`. Everything random is keyed by the global
    index of an env, so that results do not depend on how envs are grouped.

    Args:
        first_env: global index of the first env.
        dtype: of weights and activations.
        execution: how; by default as configured, without a measurement.
        is_serial: the groups are small since memory is short, and share that of one stream of a GPU.

    Raises:
        PluginError: a package's blueprint cannot be used.
        BlueprintError: a configured blueprint is unknown or does not fit the host.
    """

    def __init__(
        self,
        config: Config,
        data: Task,
        device: torch.device | str,
        *,
        first_env: int = 0,
        dtype: torch.dtype = torch.float32,
        execution: Execution | None = None,
        is_serial: bool = False,
    ) -> None:
        device = torch.device(device)
        self.execution = (execution or Execution.as_configured(config)).obeying(config)
        execution = self.execution
        self.model, self.pool = build_model(
            config, data, execution.convolution, mixes_precisions=execution.amp != "off"
        )
        self.slots = self.pool.slots
        n = config.envs.count
        self.table = SlotTable.empty(n, len(self.slots), device)
        self.parameters_host = sum(spec.count for spec in self.model.specs().values())
        self.parameters_seed = self.pool.parameters().to(device)
        """int64 [S, K]: numbers that a seed of each blueprint adds in each slot."""
        self._parameters_gate = self.pool.gate_parameters().to(device)
        self._device = device
        threads = config.envs.threads or count_cores()
        envs = torch.arange(first_env, first_env + n, device=device)
        self._spans = group_spans(n, self.execution.group_size)
        everyone = torch.arange(first_env, first_env + n)
        self.tasks = EnvTasks(data, everyone, config.seed, dtype, config.task.augment, device)
        self.groups = [
            HostGroup(
                config,
                self.tasks.splits(a, b),
                self.model,
                self.pool,
                envs[a:b],
                self.table.rows(a, b),
                dtype,
                self.execution,
            )
            for a, b in self._spans
        ]
        self._executor = GroupExecutor(len(self.groups), threads, device, is_serial=is_serial)
        self._topology: Topology | None = None
        self._budget = config.validation.counterfactual_budget
        self._coalitions, self._seed = config.validation.shapley_coalitions, config.seed
        self._only_fossilized = config.reward.only_fossilized
        self._final_epochs = range(config.episode_epochs - config.reward.final_epochs, config.episode_epochs)
        self._kept: dict[str, dict[str, Tensor]] = {}
        self._kept = {k: part for k, part in self.state_dict().items() if k not in NOT_IN_SNAPSHOT}
        self._failed_env = FailedEnvCapture(device, self._rows())
        self._position = (0, 0)
        self._position_on_device = torch.zeros(2, dtype=torch.int64, device=device)

    def begin_episode(self, round_: int) -> None:
        """Freshly built hosts, dormant slots."""
        self.draw_tasks(round_)
        self.table.reset()
        self._executor.map(lambda i: self.groups[i].begin_episode(round_))

    def assign_envs(self, envs: Tensor) -> None:
        """Let the hosts be those of other envs from the next episode on.

        Args:
            envs: int64 [N], global indices, in host memory; several hosts may be of one env.
        """
        self.tasks.assign_envs(envs)
        for (start, stop), group in zip(self._spans, self.groups, strict=True):
            group.envs.copy_(envs[start:stop])
            group.replace_datasets(self.tasks.splits(start, stop))

    def draw_seeds(self, topology: Topology, round_: int) -> None:
        """Draw the weights of seeds that are in stage GERMINATED before a first epoch; nothing is trained."""
        for (start, stop), group in zip(self._spans, self.groups, strict=True):
            group.plan_epoch(topology.rows(start, stop), round_, 0)

    def draw_tasks(self, round_: int) -> None:
        """Give each env of a mixture the task that it learns in a round."""
        if self.tasks.vary:
            self.tasks.draw(round_)
            for (start, stop), group in zip(self._spans, self.groups, strict=True):
                group.replace_datasets(self.tasks.splits(start, stop))

    def compile(self, compiler: Compiler, graphs: CudaGraphs) -> None:
        """Let the groups train with compiled programs and CUDA graphs."""
        with graphs.sharing_memory() if self._executor.is_serial else nullcontext():
            for group in self.groups:
                group.compile(compiler, graphs)

    def warm_up_memory(self) -> None:
        """Step all groups that train at once, with a seed in every slot, to see that memory suffices.

        Leaves everything as before an episode; what the hosts were is gone.
        """
        topology = self.fully_seeded_topology()

        def work(i: int) -> None:
            group = self.groups[i]
            group.plan_epoch(topology.rows(*self._spans[i]), 0, 0)
            scale = {} if group.loss_scale is None else group.loss_scale.state()  # outlives episodes
            kept = {name: tensor.clone() for name, tensor in scale.items()}
            group.try_step()
            for name, tensor in scale.items():
                tensor.copy_(kept[name])

        self._executor.map(work, self._executor.num_parallel)
        self.begin_episode(0)

    def fully_seeded_topology(self, every: int = 1) -> Topology:
        """Fresh hosts with a blended seed in every slot, or in every `every`-th: for a rehearsal."""
        self.begin_episode(0)
        table = self.table
        hosts, slots = table.shape
        place = torch.arange(hosts * slots, device=self._device).view(hosts, slots)
        seeds = place % every == 0
        table.stage.masked_fill_(seeds, int(Stage.HOLDING))
        table.alpha.masked_fill_(seeds, 1.0)
        table.blueprint.copy_(torch.where(seeds, place // every % len(self.pool.kinds), table.blueprint))
        return Topology.of(table.stage.cpu(), table.blueprint.cpu(), table.style.cpu())

    def set_topology(self, stage: Any, blueprint: Any, style: Any, contribution_age: Any = None) -> None:
        """Take the topology of the coming epoch, and settle whose contributions it measures.

        Args:
            stage: [N, S], like the others a copy of the table's column in host memory (numpy or CPU tensor).
            contribution_age: None = none was measured yet.
        """
        topology = Topology.of(stage, blueprint, style)
        age = np.full(topology.stage.shape, -1) if contribution_age is None else np.asarray(contribution_age)
        self._topology = replace(
            topology, is_measured=select_contributions(topology.blended, age, self._budget)
        )

    def run_epoch(
        self, round_: int, epoch: int, *, layers: Tensor | None = None, growth: bool = False
    ) -> EpochResult:
        """Train every host for an epoch and validate it, each group as soon as it has trained.

        Args:
            epoch: from 0 within the round.
            layers: bool [N], envs whose layers to measure; None = none.
            growth: whether to measure what empty slots would gain from new weights.
        """
        assert self._topology is not None, "set_topology comes first"
        pairs = select_pairs(self._topology.is_measured, epoch, self._budget)
        topology = replace(self._topology, pairs=pairs)
        fossils = topology.fossils() if self._counts_fossils(epoch) else None

        def work(i: int) -> GroupEpoch:
            (start, stop), group = self._spans[i], self.groups[i]
            begun = time.perf_counter()
            group.plan_epoch(topology.rows(start, stop), round_, epoch)
            trained = group.train(round_, epoch, None if layers is None else layers[start:stop])
            halfway = time.perf_counter()
            score = group.validate(round_, epoch, None if fossils is None else fossils.rows(start, stop))
            scores = group.growth(round_, epoch) if growth else None
            return GroupEpoch(trained, score, scores, halfway - begun, time.perf_counter() - halfway)

        self._position = (round_, epoch)
        for place, number in zip(self._position_on_device, self._position, strict=True):
            place.fill_(number)
        begun = time.perf_counter()
        done = self._executor.map(work)
        seconds = phase_seconds(done, time.perf_counter() - begun)
        trained, scores = [part.trained for part in done], [part.score for part in done]
        parts = [part.layers for part in trained if part.layers is not None]
        layer_tensors = LayerTensors.joined(parts) if parts else None
        measurements = self._join_measurements(trained, scores, only_fossilized=fossils is not None)
        if growth:
            scored = torch.cat([part.growth for part in done if part.growth is not None])
            taken = is_in(self.table.stage, WITH_SEED).unsqueeze(-1)
            measurements.growth = scored.masked_fill(taken, torch.nan)
        self.table.record_contribution(measurements.contribution)
        self.table.record_interaction(measurements.interaction)
        return EpochResult(measurements, layer_tensors, seconds, self._scaling(trained))

    def shapley(self, round_: int) -> ShapleyValues:
        """Shapley values of the seeds that the table holds, on the validation split; `test` comes first."""

        def measure(envs: Codes, removed: Codes) -> NDArray[np.float64]:
            values = np.empty(len(envs))

            def work(i: int) -> None:
                start, stop = self._spans[i]
                mine = (envs >= start) & (envs < stop)
                if mine.any():
                    wanted = Coalitions(envs[mine] - start, removed[mine])
                    values[mine] = self.groups[i].coalitions(wanted, round_).cpu().numpy()

            self._executor.map(work)
            return values

        envs = torch.cat([group.envs for group in self.groups]).cpu()
        key = rng.key(self._seed, rng.Purpose.SHAPLEY, envs, round_)
        counted = (Stage.FOSSILIZED,) if self._only_fossilized else BLENDED
        blended = is_in(self.table.stage, counted).cpu().numpy()
        return shapley_values(blended, measure, self._coalitions, key)

    def test(self) -> tuple[Tensor, Tensor]:
        """Loss [N] and accuracy [N] on the test images, with the seeds of the table that count now.

        Those need not be the ones of the last epoch, which may have been undone; so they are read back.
        """
        table = self.table
        topology = Topology.of(*torch.stack([table.stage, table.blueprint, table.style]).cpu())
        topology = topology.fossils() if self._only_fossilized else topology
        scores = self._executor.map(lambda i: self.groups[i].test(topology.rows(*self._spans[i])))
        return torch.cat([s.loss for s in scores]), torch.cat([s.accuracy for s in scores])

    def parameters(self) -> Tensor:
        """int64 [N]: numbers in each host and its live seeds."""
        return self.parameters_host + self.seed_parameters().sum(1)

    def tested_parameters(self) -> Tensor:
        """int64 [N]: numbers in each host and in those of its seeds that `test` leaves in."""
        counted = self._counted_parameters(self.seed_parameters(), only_fossilized=self._only_fossilized)
        return self.parameters_host + counted.sum(1)

    def seed_parameters(self) -> Tensor:
        """int64 [N, S]: numbers in each live seed, with its gate."""
        table = self.table
        live = is_in(table.stage, (*ISOLATED, *BLENDED))
        slots = torch.arange(len(self.slots), device=self._device)
        seeds = self.parameters_seed[slots, table.blueprint.clamp_min(0)]
        gates = torch.where(table.style == Style.GATE, self._parameters_gate, 0)
        return torch.where(live, seeds + gates, 0)

    @torch.no_grad()
    def snapshot(self, envs: Tensor) -> None:
        """Take a snapshot of the hosts bool [N]: weights, statistics of their norms, slots."""
        if is_known_empty(envs):
            return
        for kept, live, rows in self._snapshot_pairs():
            copy_rows_(kept, live, envs[rows])

    @torch.no_grad()
    def restore(self, envs: Tensor) -> None:
        """Restore the hosts bool [N] from their snapshot, bit for bit; their momentum is cleared.

        The state of the last of them is kept for `failed_env` first.
        """
        if is_known_empty(envs):
            return
        self._failed_env.record(envs, self._position_on_device, self._rows())
        for kept, live, rows in self._snapshot_pairs():
            copy_rows_(live, kept, envs[rows])
        for (start, stop), group in zip(self._spans, self.groups, strict=True):
            zero_rows_(list(group.optimizer.momentum.values()), envs[start:stop])

    def restorable(self) -> list[Tensor]:
        """The tensors that `snapshot` and `restore` change."""
        pairs = [t for kept, live, _ in self._snapshot_pairs() for t in (*kept, *live)]
        momentum = [t for group in self.groups for t in group.optimizer.momentum.values()]
        return [*pairs, *momentum, *self._failed_env.tensors()]

    def failed_env(self) -> dict[str, Any] | None:
        """The env whose numbers are not finite now, else the one restored last; None where all were healthy.

        Waits for the device: for a run that has ended. See `FailedEnvCapture.find`.
        """
        return self._failed_env.find(self._position, self._rows())

    def _rows(self) -> Iterator[tuple[str, Tensor, int]]:
        """Slots, weights and buffers, as (name, rows, env of the first row)."""
        for name, rows in vars(self.table).items():
            yield f"table.{name}", rows, 0
        for (start, _), group in zip(self._spans, self.groups, strict=True):
            for kind, tensors in (("weights", group.weights), ("buffers", group.buffers)):
                for name, rows in tensors.items():
                    yield f"{kind}.{name}", rows, start

    def _snapshot_pairs(self) -> Iterator[tuple[list[Tensor], list[Tensor], slice]]:
        """Kept and live tensors of the same order, and the envs that their rows belong to."""
        yield list(self._kept["table"].values()), list(vars(self.table).values()), slice(None)
        for (start, stop), group in zip(self._spans, self.groups, strict=True):
            parts = [(k, part) for k, part in group.state().items() if k not in NOT_IN_SNAPSHOT]
            live = {(kind, name): tensor for kind, part in parts for name, tensor in part.items()}
            kept = [self._kept[kind][name][start:stop] for kind, name in live]
            yield kept, list(live.values()), slice(start, stop)

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that lives on: the table, and stacked [N, ...] tensors in any grouping."""
        states = [group.state() for group in self.groups]
        stacked = {
            kind: {name: torch.cat([s[kind][name].detach() for s in states]) for name in states[0][kind]}
            for kind in states[0]
        }
        kept = {kind: {name: t.clone() for name, t in part.items()} for kind, part in self._kept.items()}
        return {"table": self.table.state_dict(), "kept": kept, **stacked}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; `set_topology` comes next."""
        self.table.load_state_dict(state["table"])
        for kind, part in self._kept.items():
            for name, tensor in part.items():
                tensor.copy_(state["kept"][kind][name])
        for (start, stop), group in zip(self._spans, self.groups, strict=True):
            for kind, tensors in group.state().items():
                for name, tensor in tensors.items():
                    tensor.copy_(state[kind][name][start:stop])

    @property
    def learning_rates(self) -> tuple[float, float]:
        """Learning rates of hosts and seeds in the epoch that was run last."""
        return self.groups[0].learning_rates

    def set_learning_rate(self, value: float) -> None:
        """Set the rate of the hosts, and of seeds without a rate of their own, from the next epoch on."""
        for group in self.groups:
            group.set_learning_rate(value)

    def close(self) -> None:
        """End the worker threads."""
        self._executor.close()

    def _scaling(self, trained: list[TrainResult]) -> dict[str, Tensor]:
        scales = [group.loss_scale.scale_N for group in self.groups if group.loss_scale is not None]
        skipped = [part.skipped_steps for part in trained if part.skipped_steps is not None]
        return {"loss_scale": torch.cat(scales), "skipped_steps": torch.cat(skipped)} if scales else {}

    def _counts_fossils(self, epoch: int) -> bool:
        """True if in this epoch of an episode only fossilised seeds are validated."""
        return self._only_fossilized and epoch in self._final_epochs

    def _counted_parameters(self, seed_parameters: Tensor, *, only_fossilized: bool) -> Tensor:
        """[N, S] those of the seeds that count."""
        if not only_fossilized:
            return seed_parameters
        return torch.where(self.table.stage == Stage.FOSSILIZED, seed_parameters, 0)

    def _join_measurements(
        self, trained: list[TrainResult], scores: list[Score], *, only_fossilized: bool
    ) -> Measurements:
        seed_parameters = self.seed_parameters()
        counted = self._counted_parameters(seed_parameters, only_fossilized=only_fossilized)
        return Measurements(
            train_loss=torch.cat([t.loss for t in trained]),
            train_accuracy=torch.cat([t.accuracy for t in trained]),
            val_loss=torch.cat([s.loss for s in scores]),
            val_accuracy=torch.cat([s.accuracy for s in scores]),
            contribution=torch.cat([s.contribution for s in scores]),
            interaction=torch.cat([s.interaction for s in scores]),
            host_grad_norm=torch.cat([t.host_grad_norm for t in trained]),
            host_health=torch.cat([t.host_health for t in trained]),
            seed_grad_norm=torch.cat([t.seed_grad_norm for t in trained]),
            seed_health=torch.cat([t.seed_health for t in trained]),
            growth=torch.full((*self.table.shape, len(SCORES)), torch.nan, device=self._device),
            parameters=self.parameters_host + counted.sum(1),
            seed_parameters=seed_parameters,
        )
