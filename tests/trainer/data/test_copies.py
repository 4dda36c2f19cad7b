"""Images are put on the device once: an epoch reads them where they lie and copies none of them there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esper_overwatch.trainer.compute import native_images
from esper_overwatch.trainer.data.dataset import Dataset
from esper_overwatch.trainer.hosts.population import Population
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
DATA = tiny(10, (3, 16, 16), train=600)
GATHERS = {"index_select", "scale_images"}
"""By torch, and by the native kernel, whose call torch does not see."""
READS = GATHERS | {"slice", "addcmul"}
"""Gathering a batch, and taking a piece of a split to normalise it: each makes a batch, not a copy."""


class Reads(TorchDispatchMode):
    """Which operations read the memory of some tensors."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(func.overloadpacket.__name__, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def watch(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function, noted where it is given the memory."""

        def call(*args: Any) -> Tensor:
            self._note(function.__name__, args)
            return function(*args)

        return call

    def _note(self, name: str, given: Any) -> None:
        inputs = [value for value in tree_leaves(given) if isinstance(value, Tensor)]
        if any(value.untyped_storage().data_ptr() in self._memory for value in inputs):
            self.names.add(name)


def grown(data: Dataset, device: str, family: str) -> Population:
    """A population with seeds in all stages, after an epoch."""
    columns = rows(every_state(), list(range(0, 28, 7)))
    cfg = config(4, host__family=family, envs__group_size=4, task__batch_size=64)
    population = Population(cfg, data.to(device), device)
    plant(population, {name: values.to(device) for name, values in columns.items()})
    table = population.table
    population.set_topology(table.stage.cpu(), table.blueprint.cpu(), table.style.cpu())
    population.run_epoch(1, 0)
    return population


@pytest.mark.slow
@pytest.mark.parametrize("family", ["cnn", "resnet"])
def test_an_epoch_reads_images_where_they_lie(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    population = grown(DATA, "cpu", family)
    group = population.groups[0]
    stores = [group.batches.examples, group._val]
    reads = Reads([getattr(examples, "pixels_MHWC") for examples in stores])  # noqa: B009
    monkeypatch.setattr(native_images, "scale_images", reads.watch(native_images.scale_images))
    with reads:
        group.train(1, 1)
        group.validate(1, 1)
    assert reads.names & GATHERS, "it is the memory that training reads"
    assert reads.names <= READS
    population.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_epoch_sends_no_images_to_a_gpu(tmp_path: Path) -> None:
    population = grown(DATA, "cuda", "resnet")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        population.run_epoch(1, 1)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    sent = list(_bytes_sent(tmp_path / "trace.json"))
    assert sum(sent) < 3 * 16 * 16, f"less than one image of {sent}"
    population.close()


def _bytes_sent(trace: Path) -> Iterator[int]:
    """Of each copy from the host to the device."""
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]:
            yield int(event["args"]["bytes"])
