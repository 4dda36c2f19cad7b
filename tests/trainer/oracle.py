"""One env as ordinary modules: what the stacked engine is held against, and raced against.

Written from the definitions, with torch.nn's own layers and plain autograd; shares no code with the engine
but the names of parameters.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Style
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.dataset import Dataset, Split
from esper_overwatch.trainer.hosts.population import Population


class GroupNorm(nn.GroupNorm):
    """torch.nn's, but for the backward that crashes where a channels_last input needs no gradient."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // 8 if channels % 8 == 0 else 1, channels)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad or not torch.is_grad_enabled():
            return super().forward(x)
        return F.group_norm(x, self.num_groups) * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class Norm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.gain = GroupNorm(channels), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.norm(x), self.gain)


class Attention(nn.Module):
    def __init__(self, channels: int, width: int = 0) -> None:
        super().__init__()
        hidden = width or max(4, channels // 4)
        self.squeeze, self.excite = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        nn.init.zeros_(self.excite.weight)
        nn.init.zeros_(self.excite.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
        return x * (2 * weight[:, :, None, None])


class Residual(nn.Module):
    """x + gain * branch(x)."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for name, layer in self.named_children():
            y = layer(y)
            if name.startswith("norm"):
                y = torch.relu(y)
        return x + self.gain * y


def convolution(inputs: int, outputs: int, kernel: int, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)


def make_seed(name: str, c: int) -> nn.Module:
    """A newborn seed of that blueprint for c channels."""
    name, _, choice = name.partition(":")
    width = int(choice.partition("=")[2] or 0)
    if name == "norm":
        return Norm(c)
    if name == "attention":
        return Attention(c, width)
    if name == "depthwise":
        return Residual(depth=convolution(c, c, 3, c), point=convolution(c, c, 1), norm=GroupNorm(c))
    if name in ("conv_small", "conv_light"):
        return Residual(conv=convolution(c, c, 1 if name == "conv_small" else 3), norm=GroupNorm(c))
    if name == "conv_heavy":
        first, second = convolution(c, c, 3), convolution(c, c, 3)
        return Residual(first=first, norm1=GroupNorm(c), second=second, norm2=GroupNorm(c))
    if name != "bottleneck":
        raise NotImplementedError(f"blueprint {name}: write its twin here, of torch.nn's own layers")
    narrow = width or max(2, c // 4)
    return Residual(
        reduce=convolution(c, narrow, 1),
        norm1=GroupNorm(narrow),
        conv=convolution(narrow, narrow, 3),
        norm2=GroupNorm(narrow),
        expand=convolution(narrow, c, 1),
    )


def _is_seeds(name: str) -> bool:
    """Whether a parameter is a seed's or a gate's, not the host's."""
    return name.split(".")[0] in ("seed", "gate")


@dataclass
class Grafting:
    """How the seed of a slot meets its host."""

    isolated: bool
    style: int
    alpha: float
    frozen: bool


class Env(nn.Module):
    """A host, its seeds and their optimizer."""

    keeps_gradients = True

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__()
        inputs, channels = data.shape[0], config.host.channels
        kernel = config.host.kernel
        self.conv = nn.ModuleList(
            convolution(a, b, kernel) for a, b in zip((inputs, *channels), channels, strict=False)
        )
        self.norm = nn.ModuleList(nn.BatchNorm2d(c) for c in channels)
        self.head = nn.Linear(channels[-1], data.classes)
        self.seed = nn.ModuleDict()
        self.gate = nn.ModuleDict()
        self.grafting: dict[str, Grafting] = {}
        self._config, self._data = config, data
        self.optimizer: torch.optim.Optimizer
        self.measured: dict[str, Tensor] = {}
        """Gradients of the last step by name, before they were clipped, where they are kept."""

    def forward(self, x: Tensor, without: Collection[int] = ()) -> Tensor:
        """Logits [B, classes]; with the slots `without` as if their alpha were 0."""
        for i, (conv, norm) in enumerate(zip(self.conv, self.norm, strict=True)):
            if i > 0 and min(x.shape[2:]) >= 2:
                x = F.max_pool2d(x, 2)
            x = self._behind(i, torch.relu(norm(conv(x))), without)
        return self.head(x.mean((2, 3)))

    def _behind(self, block: int, x: Tensor, without: Collection[int]) -> Tensor:
        """What the slots behind a block make of x, one after the other."""
        rows = self._config.host.slot_rows
        for slot in range(block * rows, (block + 1) * rows):
            if str(slot) in self.seed and slot not in without:
                x = self._slot(str(slot), x)
        return x

    def _slot(self, slot: str, h: Tensor) -> Tensor:
        how = self.grafting[slot]
        if how.isolated:
            if not torch.is_grad_enabled():
                return h
            s = self.seed[slot](h.detach())
            return h + (s - s.detach())
        s = self._call(self.seed[slot], h, how.frozen)
        if how.style == Style.ADD:
            return torch.lerp(h, s, how.alpha)
        if how.style == Style.MULTIPLY:
            return h * (1 + how.alpha * torch.tanh(s - h))
        return torch.lerp(h, s, how.alpha * self._opening(slot, h, how.frozen))

    def _opening(self, slot: str, h: Tensor, frozen: bool) -> Tensor:
        """How far the gate is open, to be spread over h."""
        return torch.sigmoid(self._call(self.gate[slot], h.mean((2, 3)), frozen))[:, :, None, None]

    @staticmethod
    def _call(module: nn.Module, x: Tensor, frozen: bool) -> Tensor:
        if not frozen:
            return module(x)
        return functional_call(module, {n: p.detach() for n, p in module.named_parameters()}, x)

    def _clip(self) -> None:
        """Clip the gradient of the host by its norm, that of each seed, and of each gate, by its own."""
        if self._config.host.max_grad_norm:
            hosts = [p for n, p in self.named_parameters() if not _is_seeds(n)]
            nn.utils.clip_grad_norm_(hosts, self._config.host.max_grad_norm)
        limit = self._config.seeds.max_grad_norm
        if limit:
            for module in (*self.seed.values(), *self.gate.values()):
                if not any(True for _ in module.parameters()):
                    continue
                nn.utils.clip_grad_norm_(module.parameters(), limit)

    def inputs(self, split: Split, index: Tensor) -> Tensor:
        """Normalised images [B, C, H, W] in channels_last memory, where there is one channel too."""
        mean, std = self._data.mean.view(-1, 1, 1), self._data.std.view(-1, 1, 1)
        dtype = self.head.weight.dtype
        x = ((split.images[index].double() - mean) / std).to(dtype).permute(0, 2, 3, 1)
        return x.clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)

    def step(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """One step of SGD: loss, and correct answers."""
        self.train()
        self.optimizer.zero_grad(set_to_none=True)
        logits = self(x)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        if self.keeps_gradients:
            self.measured = {n: p.grad.clone() for n, p in self.named_parameters() if p.grad is not None}
        self._clip()
        self.optimizer.step()
        return loss.detach(), (logits.detach().argmax(1) == labels).sum()

    @torch.no_grad()
    def measure(self, batches: list[Tensor], without: Collection[int] = ()) -> None:
        """Set the running statistics to the mean of those of the batches, as `forward` sees them."""
        self.train()
        for count, x in enumerate(batches, 1):
            for norm in self.modules():
                if isinstance(norm, nn.BatchNorm2d):
                    norm.momentum = 1.0 / count
            self(x, without)

    @torch.no_grad()
    def validate(self, split: Split, without: Collection[int] = ()) -> tuple[float, float]:
        """Loss and accuracy; with the slots `without` as if their alpha were 0."""
        self.eval()
        logits = self(self.inputs(split, torch.arange(len(split))), without)
        accuracy = (logits.argmax(1) == split.labels).double().mean()
        return float(F.cross_entropy(logits, split.labels)), float(accuracy)

    def graft(self, slot: int, name: str, how: Grafting) -> None:
        """Put a newborn seed into a slot."""
        channels, key = self.channels(slot), str(slot)
        self.seed[key] = self.newborn(name, channels).to(self.head.weight.dtype)
        if how.style == Style.GATE:
            self.gate[key] = nn.Linear(channels, 1, dtype=self.head.weight.dtype)
        self.grafting[key] = how

    def channels(self, slot: int) -> int:
        """Width of a slot."""
        return self._config.host.channels[slot // self._config.host.slot_rows]

    @staticmethod
    def newborn(name: str, channels: int) -> nn.Module:
        """A newborn seed of that blueprint."""
        return make_seed(name, channels)

    def begin(self) -> None:
        """Make the optimizer for what is there now: matrices and kernels decay, and gates do not."""
        host, seeds = self._config.host, self._config.seeds
        self.to(memory_format=torch.channels_last)
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            rate = (seeds.learning_rate if _is_seeds(name) else 0.0) or host.learning_rate
            decay = seeds.weight_decay if _is_seeds(name) else host.weight_decay
            decays = parameter.dim() > 1 and not name.startswith("gate.")
            groups.setdefault((rate, decay if decays else 0.0), []).append(parameter)
        self.optimizer = torch.optim.SGD(
            [{"params": params, "lr": lr, "weight_decay": wd} for (lr, wd), params in groups.items()],
            momentum=host.momentum,
        )

    def engine_name(self, name: str, slots: list[str], blueprints: dict[str, str]) -> str:
        """What the engine calls a parameter of this module."""
        part, *rest = name.split(".")
        if part == "head":
            return name
        if part in ("conv", "norm"):
            return f"block{rest[0]}.{part}.{rest[1]}"
        slot, *tail = rest
        kind = blueprints[slot] if part == "seed" else "gate"
        return ".".join([slots[int(slot)], kind, *tail])


def env_from(
    config: Config, data: Any, population: Population, state: dict[str, Any], env: int, kind: Any = Env
) -> tuple[Any, dict[str, str]]:
    """Host `env` of a population's state as modules, and the engine's name of each parameter."""
    slots, table = population.slots, population.table
    weights = population.pool.unpacked(state["weights"])
    momenta = population.pool.unpacked(state["momentum"])
    oracle = kind(config, data).to(next(iter(weights.values())).dtype)
    kinds: dict[str, str] = {}
    for slot in range(len(slots)):
        stage = int(table.stage[env, slot])
        if stage in (*ISOLATED, *BLENDED):
            kinds[str(slot)] = config.seeds.blueprints[int(table.blueprint[env, slot])]
            how = Grafting(
                isolated=stage in ISOLATED,
                style=int(table.style[env, slot]),
                alpha=float(table.alpha[env, slot]),
                frozen=bool(table.pruning[env, slot]),
            )
            oracle.graft(slot, kinds[str(slot)], how)
    names = {n: oracle.engine_name(n, slots, kinds) for n, _ in oracle.named_parameters()}
    oracle.begin()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(weights[names[name]][env].view_as(parameter))
            momentum = momenta[names[name]][env].view_as(parameter)
            oracle.optimizer.state[parameter]["momentum_buffer"] = momentum.clone()
    return oracle, names
