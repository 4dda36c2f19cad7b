"""Rounds of esper-lite on given images, for `prior_art`, which runs this file with a checkout on the path.

Its own trainer runs as it is, telemetry included; replaced are the images (CIFAR-10, which it would fetch),
and torchvision, of which it only needs that it can be imported. Seeds are held back or set by its action
masks.
Argument: JSON with `images`, `envs`, `rounds`, `epochs`, `seeds`. Ends with a line of JSON.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import itertools
import json
import logging
import sys
import time
import types
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

BATCH_SIZE, TRAINING_BATCHES = 64, 4
SLOTS = ["r0c0", "r0c1", "r0c2"]


def without_torchvision() -> None:
    """Put empty modules in its place."""
    names = ("torchvision", "torchvision.transforms", "torchvision.datasets")
    modules: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vision = modules["torchvision"]
    vision.transforms, vision.datasets, vision.__version__ = *list(modules.values())[1:], "0.0"
    sys.modules.update(modules)


def put_images(path: str, envs: int) -> None:
    """Have every task use these images: four batches of each env to train on, one to validate on."""
    from esper.runtime import tasks
    from esper.utils import data

    with np.load(path) as file:
        x, y = torch.from_numpy(file["x_train"]).float() / 255, torch.from_numpy(file["y_train"]).long()
    x = ((x - x.mean()) / x.std()).contiguous(memory_format=torch.channels_last)

    def drawn(batches: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.randint(
            len(x), (envs * BATCH_SIZE * batches,), generator=torch.Generator().manual_seed(seed)
        )
        return x[index].contiguous(memory_format=torch.channels_last), y[index]

    train, test = drawn(TRAINING_BATCHES, 1), drawn(1, 2)

    def cached(
        device: Any, data_root: Any, *, augment_mode: str = "base", seed: Any = None, **_: Any
    ) -> None:
        key = data._cifar10_cache_key(device, data_root, augment_mode=augment_mode, seed=seed)
        data._GPU_DATASET_CACHE[key] = (*train, *test)

    data._ensure_cifar10_cached = cached
    both = TensorDataset(*train), TensorDataset(*test)
    tasks.get_cifar10_datasets = lambda **_: both
    tasks.TaskSpec.get_datasets = lambda _: both


def restrict(seeds: str) -> None:
    """Mask what may be done: `none` plants nothing, `one` plants conv_light at once and keeps it."""
    from esper.leyline import BlueprintAction, LifecycleOp
    from esper.simic.training import action_execution, vectorized_trainer

    if seeds == "default":
        return
    light = next(int(each) for each in BlueprintAction if each.name == "CONV_LIGHT")

    def restricted(compute: Any, *args: Any, **kwargs: Any) -> Any:
        mask = compute(*args, **kwargs)
        ops = mask["op"]
        if seeds == "none":
            ops[int(LifecycleOp.GERMINATE)] = False
            return mask
        for op in LifecycleOp:
            if op.name in ("PRUNE", "SET_ALPHA_TARGET"):
                ops[int(op)] = False
        if bool(ops[int(LifecycleOp.GERMINATE)]):
            ops[:] = False
            ops[int(LifecycleOp.GERMINATE)] = True
        if bool(mask["blueprint"][light]):
            mask["blueprint"] = torch.zeros_like(mask["blueprint"])
            mask["blueprint"][light] = True
        return mask

    for module in (vectorized_trainer, action_execution):
        module.compute_action_masks = functools.partial(restricted, module.compute_action_masks)


def main() -> None:
    torch.set_num_threads(1)
    asked = json.loads(sys.argv[1])
    without_torchvision()
    put_images(asked["images"], asked["envs"])
    restrict(asked["seeds"])
    logging.disable(logging.WARNING)

    from esper.simic.agent.ppo_agent import PPOAgent
    from esper.simic.training.vectorized import train_ppo_vectorized
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer as Trainer

    ends: list[float] = []
    live: list[float] = []

    update, train_pass = PPOAgent.update, Trainer._run_train_pass

    def update_and_note(agent: Any, *args: Any, **kwargs: Any) -> Any:
        found = update(agent, *args, **kwargs)
        ends.append(time.perf_counter())
        return found

    def count_and_train(trainer: Any, **kwargs: Any) -> Any:
        if ends:
            envs, slots = kwargs["env_states"], kwargs["ordered_slots"]
            live.append(sum(e.model.has_active_seed_in_slot(s) for e in envs for s in slots) / len(envs))
        return train_pass(trainer, **kwargs)

    PPOAgent.update, Trainer._run_train_pass = update_and_note, count_and_train
    options = {
        "n_episodes": asked["rounds"],
        "n_envs": asked["envs"],
        "max_epochs": asked["epochs"],
        "device": "cpu",
        "devices": ["cpu"],
        "task": "cifar_baseline",
        "num_workers": 0,
        "seed": asked["seed"],
        "batch_size_per_env": BATCH_SIZE,
        "gpu_preload": True,
        "experimental_gpu_preload_gather": True,
        "compile_mode": "off",
        "amp": False,
        "amp_dtype": "off",
        "slots": SLOTS,
        "use_telemetry": True,
        "quiet_analytics": True,
        "max_seeds": 1 if asked["seeds"] == "one" else None,
    }
    known = inspect.signature(train_ppo_vectorized).parameters
    train_ppo_vectorized(**{name: value for name, value in options.items() if name in known})
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    print(json.dumps({"seconds": seconds, "live": sum(live) / max(1, len(live))}), flush=True)


if __name__ == "__main__":
    main()
