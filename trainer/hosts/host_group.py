"""A host group: n hosts and their seeds as one stacked program, trained and validated together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import (
    MIXED_PRECISION_TOLERANCE,
    RELATIVE_TOLERANCE,
    CompiledProgram,
    Compiler,
)
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import filled, is_known_empty
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.schedules import schedule_share
from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters, initialise
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.batches import Batches
from esper_overwatch.trainer.seeds.table import SlotTable

from .env_tasks import DatasetSplits
from .gradients import LayerTensors
from .group_statistics import GroupStatistics, TrainResult
from .growth_score import NUM_BATCHES, growth_scores, kernel_gradient
from .masked_plan import MaskedPlan
from .masked_validation import MaskedTree, MaskedValidation
from .model import HostModel
from .optimizer import HOSTS, SEEDS, make_optimizer, padded_zeros
from .precision import LossScale, autocast, scaled_sum
from .seed_pool import DrawTables, SeedPool
from .slot_plan import Runs, SlotColumns, Topology
from .validation import Coalitions, Score, Validation

COUNT_TOLERANCE = 0.01
"""Share of correct answers by which a captured training step may differ: near ties, rounded otherwise."""


class _Programs(NamedTuple):
    """The parts of an epoch as they run: as written, compiled, or captured as CUDA graphs."""

    forward: Callable[[Runs, Parameters, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    """See `HostGroup._forward`."""
    step: Callable[[Runs, Tensor, Tensor, Tensor | None], Parameters]
    """See `HostGroup._step`; calls `forward`."""
    summarise: Callable[[Parameters], tuple[Tensor, ...]]
    """See `HostGroup._summarise`."""
    imagine: Callable[[Runs, Tensor, Tensor], list[Tensor]]
    """See `HostGroup._imagine`."""
    germinate: Callable[[Tensor], None] | None = None
    """See `HostGroup._germinate`; None where only the rows of the born are drawn."""


@dataclass(frozen=True)
class _Totals:
    """Sums over the steps of an epoch, [n] each."""

    loss: Tensor
    correct: Tensor
    """int64, right answers."""
    skipped: Tensor
    """int64, steps that overflowed."""
    applied: Tensor
    """bool, whose last step did not."""


class HostGroup:
    """Some hosts of a population.

    Args:
        envs: int64 [n], global indices of the hosts, on the device.
        table: the population's slot table, the rows of these hosts; a view.
        execution: which seeds are computed, and in what.
    """

    def __init__(
        self,
        config: Config,
        data: DatasetSplits,
        model: HostModel,
        pool: SeedPool,
        envs: Tensor,
        table: SlotTable,
        dtype: torch.dtype,
        execution: Execution,
    ) -> None:
        self.envs, self.table = envs, table
        self._amp = amp = execution.amp
        self.loss_scale = LossScale(len(envs), envs.device) if amp == "fp16" else None
        self._config, self._model, self._pool, self._dtype = config, model, pool, dtype
        n, device = len(envs), envs.device

        def zeros(specs: dict[str, Init]) -> Parameters:
            return {name: padded_zeros((n, *spec.shape), dtype, device) for name, spec in specs.items()}

        self.weights = {
            name: w.requires_grad_() for name, w in zeros({**model.specs(), **pool.specs()}).items()
        }
        self._leaves = {
            name: w.detach().view(-1).requires_grad_() if w.dim() == 2 and name in model.specs() else w
            for name, w in self.weights.items()
        }
        """The weights as the training step takes them: vectors of hosts as one row of n*C, in the same
        memory."""
        self.buffers = zeros(model.buffer_specs())
        self.optimizer = make_optimizer(config, self.weights, model, pool)
        task = config.task
        self.batches = Batches(data.train, envs, config.seed, task.batch_size, shared=task.shared_batches)
        self._recent: tuple[int, int, deque[Tensor]] | None = None
        """Round, epoch and the newest inputs of what was trained last, until it is validated."""
        self._val, self._test = data.val, data.test
        self._absent = None if data.train.absent is None else data.train.absent.unsqueeze(1).clone()
        """bool [n, 1, classes], see `Examples.absent`; always the same memory, which CUDA graphs know."""
        self._runs: Runs = [[] for _ in pool.slots]
        self._used: list[dict[str, str]] = [{} for _ in pool.slots]
        self._freezes = True
        """True if a seed may be frozen in this epoch."""
        self._validation = Validation(model, pool, device, is_shared=task.shared_batches)
        self._masked_validation: MaskedValidation | None = None
        """Validation replayed as CUDA graphs; None without."""
        self._topology: Topology | None = None
        zeros_n = torch.zeros_like(self.envs)
        self._totals = _Totals(zeros_n.to(dtype), zeros_n, zeros_n.clone(), zeros_n.bool())
        self._statistics = GroupStatistics(model, pool, table, config.gates, amp)
        self._programs = _Programs(self._forward, self._step, self._summarise, self._imagine)
        self._draws: DrawTables = []
        self._masked: MaskedPlan | None = None
        if execution.plan == "masked":
            state = self.weights, self.optimizer.momentum
            self._masked = MaskedPlan(pool, table, state, dtype, self._seed_decay)

    def __len__(self) -> int:
        return len(self.envs)

    def replace_datasets(self, data: DatasetSplits) -> None:
        """Replace the datasets; the new ones lack classes only where the old ones could."""
        self.batches.replace_examples(data.train)
        self._val, self._test = data.val, data.test
        if self._absent is not None and data.train.absent is not None:
            self._absent.copy_(data.train.absent.unsqueeze(1))

    @torch.no_grad()
    def begin_episode(self, round_: int) -> None:
        """Fresh hosts without seeds."""
        keys = rng.key(self._config.seed, rng.Purpose.HOST, self.envs, round_)
        for tensor in (*self.weights.values(), *self.optimizer.momentum.values()):
            tensor.zero_()
        for name, values in initialise(self._model.specs(), keys, self._dtype).items():
            self.weights[name].copy_(values)
        for name, spec in self._model.buffer_specs().items():
            self.buffers[name].fill_(spec.fill)

    def try_step(self, number: int = 0) -> None:
        """A training step, for the time and the memory it takes; `plan_epoch` comes first."""
        self._step(self._runs, *self.batches.at(0, number), self.dropout_keys(0, number))

    def plan_epoch(self, topology: Topology, round_: int, epoch: int) -> None:
        """Plan an epoch for this topology; draw the weights of the seeds born in it."""
        self.optimizer.set_schedule_share(
            schedule_share(
                self._config.host.schedule,
                warmup=self._config.host.warmup_epochs,
                total=self._config.episode_epochs,
                done=epoch,
            )
        )
        self._freezes = not is_known_empty(self.table.pruning)
        slots = SlotColumns.of(topology, self.table, self._dtype)
        if self._masked is not None:
            self._runs, self.optimizer.groups[SEEDS].decay = self._masked.plan(slots)
        else:
            self._pool.zero_unused_rows(self.weights, self.optimizer.momentum, self.table)
            everyone = np.arange(len(self))
            self._runs = [
                self._pool.gather(slot, columns, everyone, columns.live) for slot, columns in enumerate(slots)
            ]
        self._used = [self._pool.trained_modules(slot, runs) for slot, runs in enumerate(self._runs)]
        if self._masked is None:
            self.optimizer.groups[SEEDS].decay = self._seed_decay(self._used)
        self._draw_newborns(topology, round_, epoch)
        self._topology = topology
        if self._masked_validation is None:
            self._validation.plan(topology, slots)

    def _draw_newborns(self, topology: Topology, round_: int, epoch: int) -> None:
        """Draw the weights of the seeds born in an epoch."""
        born = (topology.stage == Stage.GERMINATED).any(axis=0)
        if not born.any():
            return
        if self._programs.germinate is not None:
            self._programs.germinate(filled((round_, epoch), self.envs.device))
            return
        keys = rng.key(self._config.seed, rng.Purpose.SEED, self.envs, round_, epoch)
        for slot in np.flatnonzero(born).tolist():
            self._pool.germinate(self.weights, topology, slot, rng.fold(keys, slot))

    def _germinate(self, place: Tensor) -> None:
        """Draw the weights of the table's GERMINATED seeds in a round and epoch, int64 [2]."""
        keys = rng.key(self._config.seed, rng.Purpose.SEED, self.envs, *place)
        slots = torch.arange(len(self._pool.slots), device=keys.device)
        self._pool.germinate_where_born(
            self.weights, self.table, rng.fold(keys.unsqueeze(1), slots), self._draws
        )

    def _seed_decay(self, used: list[dict[str, str]]) -> dict[str, Tensor]:
        """[n, P] for each of some modules: of the seeds that learn, so of no frozen one."""
        coefficient = self._config.seeds.weight_decay
        if not coefficient:
            return {}
        learners = self._pool.learners(self.table)
        return {
            name: coefficient
            * learners[name].unsqueeze(1).to(self._dtype)
            * self._pool.matrix_numbers(name, self.envs.device)
            for modules in used
            for name in modules
        }

    @property
    def learning_rates(self) -> tuple[float, float]:
        """Learning rates of hosts and seeds in the epoch that was planned last."""
        share = self.optimizer.schedule_share
        host, seeds = (group.learning_rate * share for group in self.optimizer.groups)
        return host, seeds

    def set_learning_rate(self, value: float) -> None:
        """Set the rate of the hosts, and of seeds without a rate of their own, from the next epoch on."""
        for number, group in enumerate(self.optimizer.groups):
            if number == HOSTS or not self._config.seeds.learning_rate:
                group.learning_rate = value

    def train(self, round_: int, epoch: int, layers: Tensor | None = None) -> TrainResult:
        """One epoch of steps.

        Args:
            epoch: from 0 within the round; decides which batches come.
            layers: bool [n], whose layers to report on.
        """
        steps, answers = self._config.task.batches_per_epoch, 1
        totals = self._totals
        for total in vars(totals).values():
            total.zero_()
        gradients: Parameters = {}
        recent: deque[Tensor] = deque(maxlen=self._config.validation.calibration_batches)
        for step in range(epoch * steps, (epoch + 1) * steps):
            x, labels = self.batches.at(round_, step)
            recent.append(x)
            answers = labels.shape[1]
            gradients = self._programs.step(self._runs, x, labels, self.dropout_keys(round_, step))
        self._recent = round_, epoch, recent
        accuracy = totals.correct.to(self._dtype) / (steps * answers)
        trained = self._trained(totals.loss / steps, accuracy, gradients, layers, x)
        if self.loss_scale is None:
            return trained
        return trained.without_overflows(totals.applied, totals.skipped.clone())

    def dropout_keys(self, round_: int, step: int) -> Tensor | None:
        """int64 [n], what a training step draws by; None where nothing is dropped."""
        if not self._config.host.dropout:
            return None
        return rng.key(self._config.seed, rng.Purpose.DROPOUT, self.envs, round_, step)

    def _step(self, runs: Runs, x: Tensor, labels: Tensor, dropout_keys: Tensor | None) -> Parameters:
        """One step of the weights, added to the epoch's totals; returns the gradients.

        Args:
            x, labels: see `gradients`.
        """
        loss, hits, gradients = self.gradients(x, labels, dropout_keys, runs)
        applied = None if self.loss_scale is None else self.loss_scale.update(gradients)
        self.optimizer.step(gradients, applied)
        self._totals.loss.add_(loss)
        self._totals.correct.add_(hits)
        if applied is not None:
            self._totals.skipped.add_(~applied)
            self._totals.applied.copy_(applied)
        return gradients

    def gradients(
        self, x: Tensor, labels: Tensor, dropout_keys: Tensor | None = None, runs: Runs | None = None
    ) -> tuple[Tensor, Tensor, Parameters]:
        """Loss [n], correct answers [n] and the gradients of all weights that learn, for one batch.

        Args:
            x: [B, n*C, H, W], or [B, C, H, W] where all hosts see the same.
            labels: [n, L], the answers to them.
            dropout_keys: see the method of that name.
            runs: of the seeds; None = those of the epoch that was planned last.
        """
        names = [*self._model.specs(), *(name for used in self._used for name in used)]
        weights = {name: self._leaves[name] for name in names}
        runs = self._runs if runs is None else runs
        loss, hits, rows = self._derive(runs, weights, x, labels, dropout_keys)
        gradients = dict(zip(names, rows, strict=True))
        freezes = self._freezes and self._masked is None  # a masked plan knows who learns
        for slot, used in enumerate(self._used if freezes else ()):
            frozen = self.table.pruning.narrow(1, slot, 1)
            for name in used:
                gradients[name].masked_fill_(frozen, 0.0)
        return loss, hits, gradients

    def _derive(
        self, runs: Runs, weights: Parameters, x: Tensor, labels: Tensor, dropout_keys: Tensor | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss [n], correct answers [n] and the gradients of the weights, in their order."""
        with autocast(self._amp, self.envs.device):
            loss, hits = self._programs.forward(runs, weights, x, labels, dropout_keys)
        found = torch.autograd.grad(scaled_sum(loss, self.loss_scale), list(weights.values()))
        rows = tuple(row.view(self.weights[name].shape) for name, row in zip(weights, found, strict=True))
        if self.loss_scale is not None:
            self.loss_scale.unscale(rows)
        return loss.detach(), hits, rows

    def growth(self, round_: int, epoch: int) -> Tensor:
        """What each slot would gain from new weights after that epoch, [n, S, 4], see `growth_score`.

        Measured on the first batches of the next epoch, with the seeds that there are.
        """
        first = (epoch + 1) * self._config.task.batches_per_epoch
        batches = [
            self._programs.imagine(self._runs, *self.batches.at(round_, first + i))
            for i in range(NUM_BATCHES)
        ]
        return torch.stack([growth_scores(kernels) for kernels in zip(*batches, strict=True)], 1)

    def _imagine(self, runs: Runs, x: Tensor, labels: Tensor) -> list[Tensor]:
        """The gradient of an imagined kernel in each slot, for one batch."""
        weights = {name: leaf.detach() for name, leaf in self._leaves.items()}
        entered: list[Tensor] = []
        with autocast(self._amp, self.envs.device):
            loss, _ = self._forward(runs, weights, x, labels, None, entered)
        found = torch.autograd.grad(scaled_sum(loss, self.loss_scale), entered)
        gradient = partial(kernel_gradient, n=len(self), causal=self._model.causal)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.scale_N.to(loss.dtype).view(-1, 1, 1)
        return [kernel / scale for kernel in map(gradient, entered, found)]

    def _forward(
        self,
        runs: Runs,
        weights: Parameters,
        x: Tensor,
        labels: Tensor,
        dropout_keys: Tensor | None,
        entered: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss [n] and correct answers [n] of one batch; what enters the slots is appended to `entered`."""
        n, weights = labels.shape[0], self._pool.take(runs, weights)
        for slot, planned in enumerate(runs):
            x = self._model.train_block(slot, x, weights, dropout_keys)
            if entered is not None:
                entered.append(x.requires_grad_())
            x = self._pool.run(slot, x, n, planned, weights, keep=entered is not None)
        logits = self._model.head(x, weights).to(self._dtype)
        if self._absent is not None:
            logits = logits.masked_fill(self._absent, torch.finfo(self._dtype).min)
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return each.view_as(labels).mean(1), (logits.detach().argmax(2) == labels).sum(1)

    def compile(self, compiler: Compiler, graphs: CudaGraphs) -> None:
        """Compile and capture the training step, where its operations do not change with the seeds."""
        reason = ""
        if self._masked is None:
            reason = "its operations change with the seeds; envs.plan=masked keeps them the same"
        elif len(self) == 1:
            reason = "torch compiles a group of one host to wrong gradients"
        tolerance = RELATIVE_TOLERANCE if self._amp == "off" else MIXED_PRECISION_TOLERANCE
        name = f"hosts {int(self.envs[0])} to {int(self.envs[-1])}"
        forward = compiler.wrap(
            f"the training step of {name}",
            self._forward,
            weights=lambda: list(self._leaves.values()),
            objective=lambda out: out[0].sum(),
            tolerance=tolerance,
            unless=reason,
        )
        self._programs = self._programs._replace(forward=forward)
        if self._masked is not None and isinstance(forward, CompiledProgram):
            self._masked.shares = (1.0,)  # compiling takes minutes for each combination
        if self._masked is not None and graphs.on:
            self._masked.capture(name, graphs)
            self._programs = self._graphed(name, graphs, tolerance)

    def _graphed(self, name: str, graphs: CudaGraphs, tolerance: float) -> _Programs:
        """The programs whose operations never change, each to be issued as one graph."""
        scale = {} if self.loss_scale is None else self.loss_scale.state()
        weights, momentum, totals = self.weights, self.optimizer.momentum, vars(self._totals)
        seeds = [weights[name] for name in self._pool.specs()]
        if self._pool.draws_by_key:
            self._draws = self._pool.draw_tables(weights, len(self))
        germinate = graphs.wrap(f"the newborn of {name}", self._germinate, changes=lambda: seeds)
        count, budget = self._config.envs.count, self._config.validation.counterfactual_budget
        tree = MaskedTree(len(self), self._pool, count, budget)
        state = self.weights, self.buffers
        self._masked_validation = MaskedValidation(self._validation, tree, self.table, state, self._amp)
        self._masked_validation.capture(name, graphs, tolerance)
        return self._programs._replace(
            step=graphs.wrap(
                f"the training step of {name}",
                self._step,
                tolerance=tolerance,
                count_tolerance=COUNT_TOLERANCE,
                changes=lambda: [t for part in (weights, momentum, totals, scale) for t in part.values()],
                in_place=(0,),
                lends=True,
            ),
            summarise=graphs.wrap(f"the gradients of {name}", self._summarise),
            imagine=graphs.wrap(
                f"imagined kernels of {name}", self._imagine, tolerance=tolerance, in_place=(0,)
            ),
            germinate=germinate if self._pool.draws_by_key else None,
        )

    def validate(self, round_: int, epoch: int, topology: Topology | None = None) -> Score:
        """Loss, accuracy and contributions on the validation split after that epoch of training.

        Args:
            topology: of what is validated; None = of what was trained.
        """
        inputs = self._calibration_batches(round_, epoch)
        if self._masked_validation is not None:
            topology = topology or self._topology
            assert topology is not None, "plan_epoch comes first"
            return self._masked_validation.validate(topology, self._val, inputs)
        if topology is not None:
            self._validation.plan(topology, SlotColumns.of(topology, self.table, self._dtype))
        with autocast(self._amp, self.envs.device):
            return self._validation.validate(self._val, inputs, self.weights, self.buffers)

    def coalitions(self, wanted: Coalitions, round_: int) -> Tensor:
        """Validation accuracy float64 [M] of hosts without some of their seeds at the end of an episode.

        `test` comes first.
        """
        inputs = self._calibration_batches(round_, self._config.episode_epochs - 1)
        with autocast(self._amp, self.envs.device):
            return self._validation.values(self._val, inputs, self.weights, wanted)

    def test(self, topology: Topology) -> Score:
        """Loss and accuracy on the test split; planned here, as a resumed run may come straight to it."""
        self._validation.plan(topology, SlotColumns.of(topology, self.table, self._dtype))
        with autocast(self._amp, self.envs.device):
            return self._validation.test(self._test, self.weights, self.buffers)

    def _calibration_batches(self, round_: int, epoch: int) -> list[Tensor]:
        """Inputs of the epoch's last steps, for the statistics of batch norm; none where hosts have none."""
        end = (epoch + 1) * self._config.task.batches_per_epoch
        steps = range(max(0, end - self._config.validation.calibration_batches), end)
        trained, self._recent = self._recent, None  # large, and asked for once
        if not self.buffers:
            return []
        if trained is not None and trained[:2] == (round_, epoch) and len(trained[2]) == len(steps):
            return list(trained[2])
        return [self.batches.at(round_, step)[0] for step in steps]

    def state(self) -> dict[str, Parameters]:
        """Everything that outlives an epoch, as the live tensors [n, ...]."""
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.state()}
        momentum = self.optimizer.momentum
        return {"weights": self.weights, "momentum": momentum, "buffers": self.buffers, **scale}

    def _trained(
        self, loss: Tensor, accuracy: Tensor, gradients: Parameters, layers: Tensor | None, x: Tensor
    ) -> TrainResult:
        host_norm, host_health, seed_norm, seed_health = self._programs.summarise(gradients)
        statistics, seconds = None, 0.0
        if layers is not None:
            begun = time.perf_counter()
            statistics = self._layers(gradients, layers, x)
            seconds = time.perf_counter() - begun
        return TrainResult(
            loss=loss.float(),
            accuracy=accuracy.float(),
            host_grad_norm=host_norm,
            host_health=host_health,
            seed_grad_norm=seed_norm,
            seed_health=seed_health,
            layers=statistics,
            layers_seconds=seconds,
        )

    def _summarise(self, gradients: Parameters) -> tuple[Tensor, ...]:
        """See `GroupStatistics.summarise`."""
        return self._statistics.summarise(self._used, gradients)

    def _layers(self, gradients: Parameters, layers: Tensor, x: Tensor) -> LayerTensors:
        """Statistics of each layer, and of what it makes of these inputs, in the envs bool [n]."""
        measured = self._statistics.layers(self._used, gradients, self.weights, layers)
        return measured.with_outputs(*self._statistics.outputs(self._runs, self.weights, x, layers))
