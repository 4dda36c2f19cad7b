"""Third parties' kinds of seeds: any nn.Module that keeps the shape of its slot.

A package offers one by an entry point of the group `esper.blueprints`: a callable

    make(channels: int, size: tuple[int, int]) -> torch.nn.Module      [B, C, H, W] -> [B, C, H, W]

that may carry an attribute `identity_at_birth` (then that is checked). One module is made for each slot and
thread, and run for k seeds at once by vmap over their stacked parameters; every seed begins with the
parameters that `make` draws under a generator seeded by its own key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters, to_channels, to_rows
from esper_overwatch.trainer.plugins import PluginError, one_line

from .image_blueprints import Blueprint, Size

Make = Callable[[int, Size], nn.Module]

_drawing = threading.Lock()
"""torch's generator is shared by the process, and groups germinate on threads of their own."""


def module_blueprint(name: str, make: Make, what: str) -> Blueprint:
    """The blueprint of a third party's module.

    Args:
        what: the entry point, as messages name it.
    """

    def fit(channels: int, size: Size) -> Blueprint:
        seeds = _Seeds(make, channels, size, what)
        claims = bool(getattr(make, "identity_at_birth", False))
        return Blueprint(
            name,
            lambda _: seeds.specs,
            lambda x, weights, _: seeds.forward(x, weights),
            identity_at_birth=claims,
            draw=seeds.draw,
            origin=what,
        )

    return Blueprint(name, lambda _: {}, lambda x, *_: x, identity_at_birth=False, fit=fit)


class _Seeds:
    """The module of one slot, for any number of seeds.

    Raises:
        PluginError: it cannot be made, has nothing to learn, is not born alike by the same key, changes a
            buffer or is random.
    """

    def __init__(self, make: Make, channels: int, size: Size, what: str) -> None:
        self._make, self._channels, self._size, self._what = make, channels, size, what
        self._of_thread = threading.local()
        self.specs = {name: Init(tuple(p.shape)) for name, p in _learning(self._module).items()}
        if not any(spec.count for spec in self.specs.values()):
            raise self._error("has no parameters, so there is nothing to learn")
        self._check()

    def draw(self, keys: Tensor, dtype: torch.dtype) -> Parameters:
        """Tensors [k, ...] of newborns, by their keys (int64 [k])."""
        born = [_learning(self._made(key)) for key in keys.tolist()]
        return {
            name: torch.stack([p[name].detach() for p in born]).to(keys.device, dtype) for name in self.specs
        }

    def forward(self, x: Tensor, weights: Parameters) -> Tensor:
        """[B, k*C, H, W] from the same and tensors [k, ...]."""
        k = next(iter(weights.values())).shape[0]
        module = self._module.to(x.device, x.dtype)

        def one(tensors: Parameters, seen: Tensor) -> Tensor:
            out = functional_call(module, tensors, (seen.permute(0, 3, 1, 2),))
            if not isinstance(out, Tensor) or out.dim() != 4:
                got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise self._error(f"returns {got}; a seed must keep the shape [B, C, H, W]")
            return out.permute(0, 2, 3, 1)

        return to_channels(vmap(one, in_dims=(0, 3), out_dims=3)(weights, to_rows(x, k)))

    @property
    def _module(self) -> nn.Module:
        """This thread's own module: while it runs, `functional_call` has the seeds' parameters in it.

        Constructed again for each thread, as not every module can be copied (weight_norm).
        """
        if not hasattr(self._of_thread, "module"):
            self._of_thread.module = self._made(0)
        module: nn.Module = self._of_thread.module
        return module

    def _made(self, key: int) -> nn.Module:
        with _drawing, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key)
            try:
                module = self._make(self._channels, self._size)
            except Exception as error:
                raise self._error(f"cannot be made: {one_line(error)}") from error
        if not isinstance(module, nn.Module):
            raise self._error(f"makes {type(module).__name__}, not a torch.nn.Module")
        return module

    def _check(self) -> None:
        """Two births by one key and two runs over one input must agree, and leave the module as it was."""
        x = torch.linspace(-1.0, 1.0, 4 * self._channels * self._size[0] * self._size[1])
        x = x.view(2, 2 * self._channels, *self._size)
        weights, again = (self.draw(torch.tensor([1, 2]), torch.float32) for _ in range(2))
        if any(not _equal(weights[name], again[name]) for name in self.specs):
            raise self._error(
                "is born otherwise by the same key (numpy?), so that no run repeats; draw its first weights "
                "from torch's generator, by torch.rand or torch.nn.init"
            )
        self._check_alone(x[:, : self._channels])
        try:
            self.forward(x, weights)
        except PluginError:
            raise
        except Exception as error:
            raise self._error(f"cannot be run for several seeds at once (vmap): {one_line(error)}") from error

    @torch.no_grad()
    def _check_alone(self, x: Tensor) -> None:
        """Run one by itself, twice: vmap would refuse batch norm and dropout in words for torch's authors."""
        module = self._made(0)
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        try:
            with torch.random.fork_rng(devices=[]):
                one, two = module(x), module(x)
        except Exception as error:
            raise self._error(f"cannot be run: {one_line(error)}") from error
        if any(not torch.equal(buffers[name], now) for name, now in module.named_buffers()):
            raise self._error("changes its buffers (batch norm?); seeds have no statistics, use another norm")
        if isinstance(one, Tensor) and not _equal(one, two):
            raise self._error(
                "is random (dropout?); a seed must be a function of its input and weights, so leave that out"
            )

    def _error(self, fault: str) -> PluginError:
        return PluginError(f"{self._what}: {fault}")


def _equal(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), two.nan_to_num())


def _learning(module: nn.Module) -> dict[str, Any]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}
