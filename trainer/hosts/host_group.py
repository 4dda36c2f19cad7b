"""A host group: n hosts and their seeds as one stacked program, trained and validated together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protocol.messages.vocabulary import BLENDED, ISOLATED, Stage
from trainer.compute import rng
from trainer.compute.compiler import MIXED_PRECISION_TOLERANCE, RELATIVE_TOLERANCE, Compiler
from trainer.compute.cuda_graphs import CudaGraphs
from trainer.compute.device import is_known_empty
from trainer.compute.execution_plan import Amp
from trainer.compute.schedules import schedule_share
from trainer.compute.stacked_ops import Init, Parameters, initialise
from trainer.config.schema import Config
from trainer.data.batches import Batches
from trainer.seeds.table import SlotTable, is_in

from . import slot_plan as plan
from .env_tasks import DatasetSplits
from .gradients import LayerTensors, collected_norms, layer_statistics, norm_and_health, of_activations
from .model import HostModel
from .optimizer import ParameterGroup, StackedSGD, padded_zeros
from .precision import LossScale, autocast
from .seed_pool import SeedPool
from .slot_plan import SlotColumns, SlotRun, Topology
from .validation import Coalitions, Score, Validation

HOSTS, SEEDS = 0, 1
"""Places of their parameter groups in the optimizer."""
NUM_PROBED_EXAMPLES = 16
"""Examples of a batch whose activations are measured: each has a map of numbers, enough for statistics."""


COUNT_TOLERANCE = 0.01
"""Share of correct answers by which a captured training step may differ: near ties, rounded otherwise."""


@dataclass(frozen=True)
class TrainResult:
    """What an epoch of training measured for n hosts: float32 on the device, gradients of the last step."""

    loss: Tensor
    """[n] mean over the epoch's batches."""
    accuracy: Tensor
    """[n]"""
    host_grad_norm: Tensor
    """[n]"""
    host_health: Tensor
    """[n]"""
    seed_grad_norm: Tensor
    """[n, S]; NaN where no seed learns."""
    seed_health: Tensor
    """[n, S]; NaN where no seed learns."""
    layers: LayerTensors | None
    layers_seconds: float
    """Of this thread, spent on them."""
    skipped_steps: Tensor | None = None
    """int64 [n], steps of the epoch that overflowed; None where losses are not scaled."""

    def without_overflows(self, applied: Tensor, skipped: Tensor) -> TrainResult:
        """With NaN for the gradients of hosts whose last step overflowed: those not in `applied` bool [n].

        Args:
            skipped: int64 [n], how many steps of the epoch did.
        """
        nan, missing = float("nan"), ~applied
        return replace(
            self,
            skipped_steps=skipped,
            host_grad_norm=self.host_grad_norm.masked_fill(missing, nan),
            host_health=self.host_health.masked_fill(missing, nan),
            seed_grad_norm=self.seed_grad_norm.masked_fill(missing.unsqueeze(1), nan),
            seed_health=self.seed_health.masked_fill(missing.unsqueeze(1), nan),
        )


Runs = list[list[SlotRun]]
"""By slot."""


class _Programs(NamedTuple):
    """The parts of a training step as they run: as written, compiled, or captured as a CUDA graph."""

    forward: Callable[[Runs, Parameters, Tensor, Tensor], tuple[Tensor, Tensor]]
    """See `HostGroup._forward`."""
    derive: Callable[[Runs, Parameters, Tensor, Tensor], tuple[Tensor, Tensor, tuple[Tensor, ...]]]
    """See `HostGroup._derive`; calls `forward`."""


class HostGroup:
    """Some hosts of a population.

    Args:
        envs: int64 [n], global indices of the hosts, on the device.
        table: the population's slot table, the rows of these hosts; a view.
        amp: what forward passes compute in.
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
        amp: Amp = "off",
    ) -> None:
        self.envs, self.table = envs, table
        self._amp: Amp = amp
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
        """The same numbers as the training step takes them: vectors of hosts as one row of n*C."""
        self.buffers = zeros(model.buffer_specs())
        self.optimizer = _optimizer(config, self.weights, model, pool)
        task = config.task
        self.batches = Batches(data.train, envs, config.seed, task.batch_size, shared=task.shared_batches)
        self._val, self._test = data.val, data.test
        self._absent = None if data.train.absent is None else data.train.absent.unsqueeze(1).clone()
        """bool [n, 1, classes], see `Examples.absent`; always the same memory, which CUDA graphs know."""
        self._runs: Runs = [[] for _ in pool.slots]
        self._used: list[dict[str, str]] = [{} for _ in pool.slots]
        self._freezes = True
        """Whether a seed may be frozen in this epoch."""
        self._validation = Validation(model, pool, is_shared=task.shared_batches)
        self._programs = _Programs(self._forward, self._derive)

    def __len__(self) -> int:
        return len(self.envs)

    def learn(self, data: DatasetSplits) -> None:
        """Take other examples from now on; they lack classes only where those before could."""
        self.batches.learn(data.train)
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
        _, _, gradients = self.gradients(*self.batches.at(0, number))
        self._update(gradients)

    def plan_epoch(self, topology: Topology, round_: int, epoch: int) -> None:
        """Plan an epoch for this topology; draw the weights of the seeds born in it."""
        self._pool.zero_unused_rows(self.weights, self.optimizer.momentum, self.table)
        born = (topology.stage == Stage.GERMINATED).any(axis=0)
        if born.any():
            keys = rng.key(self._config.seed, rng.Purpose.SEED, self.envs, round_, epoch)
            for slot in np.flatnonzero(born).tolist():
                self._pool.germinate(self.weights, topology, slot, rng.fold(keys, slot))
        self._freezes = not is_known_empty(self.table.pruning)
        self.optimizer.schedule_share = schedule_share(
            self._config.host.schedule,
            warmup=self._config.host.warmup_epochs,
            total=self._config.episode_epochs,
            done=epoch,
        )
        everyone = np.arange(len(self))
        slots = SlotColumns.of(topology, self.table, self._dtype)
        for slot, columns in enumerate(slots):
            if self._config.envs.plan == "masked":
                self._runs[slot] = plan.masked(columns, len(self._pool.kinds))
            else:
                run = columns.isolated | columns.blended
                self._runs[slot] = self._pool.gather(slot, columns, everyone, run)
            self._used[slot] = self._pool.trained_modules(slot, self._runs[slot])
        if self._config.seeds.weight_decay:
            self.optimizer.groups[SEEDS].decay = self._seed_decay(self._config.seeds.weight_decay)
        self._validation.plan(topology, slots)

    def _seed_decay(self, coefficient: float) -> dict[str, Tensor]:
        """[n, P] for each module that is trained: of the seeds that learn, so of no frozen one."""
        return {
            name: coefficient
            * self._pool.learner_mask(slot, module, self.table).to(self._dtype).unsqueeze(1)
            * self._pool.matrix_numbers(name, self.envs.device)
            for slot, used in enumerate(self._used)
            for name, module in used.items()
        }

    @property
    def learning_rates(self) -> tuple[float, float]:
        """Of the hosts and of the seeds, in the epoch that was planned last."""
        share = self.optimizer.schedule_share
        host, seeds = (group.learning_rate * share for group in self.optimizer.groups)
        return host, seeds

    def set_learning_rate(self, value: float) -> None:
        """Of the hosts, and of the seeds where they have none of their own, from the next epoch on."""
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
        loss_sum = correct = torch.zeros(len(self), dtype=self._dtype, device=self.envs.device)
        gradients: Parameters = {}
        applied = None
        skipped = torch.zeros_like(self.envs)
        for step in range(epoch * steps, (epoch + 1) * steps):
            x, labels = self.batches.at(round_, step)
            answers = labels.shape[1]
            loss, hits, gradients = self.gradients(x, labels)
            applied = self._update(gradients)
            if applied is not None:
                skipped = skipped + ~applied
            loss_sum = loss_sum + loss
            correct = correct + hits
        trained = self._trained(loss_sum / steps, correct / (steps * answers), gradients, layers, x)
        return trained if applied is None else trained.without_overflows(applied, skipped)

    def _update(self, gradients: Parameters) -> Tensor | None:
        """One step of the weights; bool [n], which hosts took it, or None where all did."""
        applied = None if self.loss_scale is None else self.loss_scale.update(gradients)
        self.optimizer.step(gradients, applied)
        return applied

    def gradients(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Parameters]:
        """Loss [n], correct answers [n] and the gradients of all weights that learn, for one batch.

        Args:
            x: [B, n*C, H, W], or [B, C, H, W] where all hosts see the same.
            labels: [n, L], the answers to them.
        """
        names = [*self._model.specs(), *(name for used in self._used for name in used)]
        weights = {name: self._leaves[name] for name in names}
        loss, hits, rows = self._programs.derive(self._runs, weights, x, labels)
        gradients = dict(zip(names, rows, strict=True))
        for slot, used in enumerate(self._used if self._freezes else ()):
            frozen = self.table.pruning.narrow(1, slot, 1)
            for name in used:
                gradients[name].masked_fill_(frozen, 0.0)
        return loss, hits, gradients

    def _derive(
        self, runs: Runs, weights: Parameters, x: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss [n], correct answers [n] and the gradients of the weights, in their order."""
        with autocast(self._amp, self.envs.device):
            loss, hits = self._programs.forward(runs, weights, x, labels)
        scale = torch.ones_like(loss) if self.loss_scale is None else self.loss_scale.scale_N.to(loss.dtype)
        found = torch.autograd.grad(loss, list(weights.values()), scale)
        rows = tuple(row.view(self.weights[name].shape) for name, row in zip(weights, found, strict=True))
        if self.loss_scale is not None:
            self.loss_scale.unscale(rows)
        return loss.detach(), hits, rows

    def _forward(self, runs: Runs, weights: Parameters, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss [n] and correct answers [n] of one batch."""
        n = labels.shape[0]
        for slot, planned in enumerate(runs):
            x = self._model.train_block(slot, x, weights)
            x = self._pool.run(slot, x, n, planned, weights)
        logits = self._model.head(x, weights).to(self._dtype)
        if self._absent is not None:
            logits = logits.masked_fill(self._absent, torch.finfo(self._dtype).min)
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return each.view_as(labels).mean(1), (logits.detach().argmax(2) == labels).sum(1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _outputs(self, x: Tensor, layers: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Statistics of what blocks, slots and the head put out: [3, n] by name; bool [A, n], of which hosts.

        A forward pass of its own, of the first examples, with the weights as they are now, so that the
        step that trains is the same program whether layers are measured or not.
        """
        n, found, present = len(self), {}, []
        x = x[:NUM_PROBED_EXAMPLES]

        def measure(name: str, out: Tensor, mask: Tensor) -> None:
            found[name] = of_activations(out)
            present.append(mask)

        with autocast(self._amp, self.envs.device):
            for slot, planned in enumerate(self._runs):
                x = self._model.train_block(slot, x, self.weights)
                block, row = divmod(slot, self._model.rows)
                if row == 0:
                    measure(f"block{block}.out", _by_host(x, n), layers)
                if planned:
                    x = self._pool.run(slot, x, n, planned, self.weights)
                    seeded = is_in(self.table.stage[:, slot], (*ISOLATED, *BLENDED))
                    name = f"{self._pool.slots[slot]}.out"
                    measure(name, _by_host(x, n), layers & seeded)
            measure("head.out", self._model.head(x, self.weights).transpose(0, 1), layers)
        return found, torch.stack(present)

    def compile(self, compiler: Compiler, graphs: CudaGraphs) -> None:
        """Compile and capture the training step, where its operations do not change with the seeds."""
        reason = ""
        if self._config.envs.plan != "masked":
            reason = "its operations change with the seeds; envs.plan=masked keeps them the same"
        elif len(self) == 1:
            reason = "torch compiles a group of one host to wrong gradients"
        tolerance = RELATIVE_TOLERANCE if self._amp == "off" else MIXED_PRECISION_TOLERANCE
        name = f"the training step of hosts {int(self.envs[0])} to {int(self.envs[-1])}"
        forward = compiler.wrap(
            name,
            self._forward,
            weights=lambda: list(self._leaves.values()),
            objective=lambda out: out[0].sum(),
            tolerance=tolerance,
            unless=reason,
        )
        derive = self._derive
        if self._config.envs.plan == "masked":
            derive = graphs.wrap(name, derive, tolerance=tolerance, count_tolerance=COUNT_TOLERANCE)
        self._programs = _Programs(forward, derive)

    def validate(self, round_: int, epoch: int, topology: Topology | None = None) -> Score:
        """Loss, accuracy and contributions on the validation split after that epoch of training.

        Args:
            topology: of what is validated; None = of what was trained.
        """
        if topology is not None:
            self._validation.plan(topology, SlotColumns.of(topology, self.table, self._dtype))
        inputs = self._calibration_batches(round_, epoch)
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
        first = max(0, end - self._config.validation.calibration_batches)
        return [self.batches.at(round_, step)[0] for step in range(first, end)] if self.buffers else []

    def state(self) -> dict[str, Parameters]:
        """Everything that outlives an epoch, as the live tensors [n, ...]."""
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.state()}
        momentum = self.optimizer.momentum
        return {"weights": self.weights, "momentum": momentum, "buffers": self.buffers, **scale}

    def _trained(
        self, loss: Tensor, accuracy: Tensor, gradients: Parameters, layers: Tensor | None, x: Tensor
    ) -> TrainResult:
        everywhere = torch.ones_like(self.envs, dtype=torch.bool)
        present = [dict.fromkeys(self._model.specs(), everywhere)]
        for slot, used in enumerate(self._used):
            learners = {
                name: self._pool.learner_mask(slot, module, self.table) for name, module in used.items()
            }
            present.append({t: mask for name, mask in learners.items() for t in self._pool.tensors(name)})
        tensors = self._pool.unpacked(gradients)
        sizes = [len(part) for part in present]
        masks = torch.stack([mask for part in present for mask in part.values()])
        norms = collected_norms([tensors[name] for part in present for name in part])
        (host_norm, host_health), *seeds = map(
            partial(norm_and_health, gates=self._config.gates),
            torch.split(norms, sizes),
            torch.split(masks, sizes),
        )
        for slot, (norm, health) in enumerate(seeds):
            empty = self._pool.empty_learner_mask(slot, self.table) & norm.isnan()
            norm.masked_fill_(empty, 0.0)
            health.masked_fill_(empty, 1.0)
        statistics, seconds = None, 0.0
        if layers is not None:
            begun = time.perf_counter()
            names = [name for part in present for name in part]
            weights = self._pool.unpacked({name: self.weights[name] for name in gradients})
            statistics = layer_statistics(
                names, [tensors[n] for n in names], [weights[n] for n in names], masks & layers
            ).with_outputs(*self._outputs(x, layers))
            seconds = time.perf_counter() - begun
        return TrainResult(
            loss=loss.float(),
            accuracy=accuracy.float(),
            host_grad_norm=host_norm,
            host_health=host_health,
            seed_grad_norm=torch.stack([norm for norm, _ in seeds], dim=1),
            seed_health=torch.stack([health for _, health in seeds], dim=1),
            layers=statistics,
            layers_seconds=seconds,
        )


def _optimizer(config: Config, weights: Parameters, model: HostModel, pool: SeedPool) -> StackedSGD:
    """For hosts and for seeds a group, in the order of `HOSTS` and `SEEDS`.

    Weight decay is for kernels and matrices: what has two dimensions or more. Biases, the gains of norms and
    of seeds, and gates have none, as is usual (He et al., "Bag of tricks for image classification", 2019).
    The decay of seeds depends on who learns, so that it is set for each epoch.
    """
    host, seeds = config.host, config.seeds
    matrices = [name for name, spec in model.specs().items() if len(spec.shape) > 1]
    groups = [
        ParameterGroup(
            model.specs(),
            host.learning_rate,
            host.max_grad_norm,
            clips_jointly=True,
            decay=dict.fromkeys(matrices, host.weight_decay) if host.weight_decay else {},
        ),
        ParameterGroup(pool.specs(), seeds.learning_rate or host.learning_rate, seeds.max_grad_norm),
    ]
    return StackedSGD(weights, groups, host.momentum)


def _by_host(x: Tensor, n: int) -> Tensor:
    """[B*H*W, n, C] from [B, n*C, H, W]; a view where the memory is channels_last."""
    return x.permute(0, 2, 3, 1).reshape(-1, n, x.shape[1] // n)
