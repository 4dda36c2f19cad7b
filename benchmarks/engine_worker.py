"""One checkout's engine for `engine_history`, which gives this source to a Python that runs in that checkout.

So it may only use what the engine of every version compared has. It reads lines of JSON and answers each with
one: first what to build, then the number of an epoch to run.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

import msgspec
import torch


def build(engine: Any, asked: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    """A population with seeds after an epoch with all of them, and the work of that epoch."""
    device = torch.device("cpu")
    data = engine.load(asked["dataset"])
    config = msgspec.convert(asked["config"], engine.Config)
    if hasattr(engine, "populate"):  # until 2026-11-22
        population = engine.populate(config, data, device, engine.measure_start(config, data, device))
    else:
        execution = engine.choose_execution(config, data, device)
        population = engine.create_population(config, data, device, execution)
    population.begin_episode(1)
    engine.plant(population)
    found = population.run_epoch(1, 1)
    measured = getattr(found, "measurements", found)
    return population, {
        "batches": config.task.batches_per_epoch,
        "batch_size": config.task.batch_size,
        "training_examples": len(data.train.labels),
        "validation_examples": len(data.val.labels),
        "contributions": int((~measured.contribution.isnan()).sum()),
        "parameters": int(measured.parameters.sum()),
        "train_loss": float(measured.train_loss.mean()),
    }


def main() -> None:
    torch.set_num_threads(1)
    population, work = build(import_module("benchmarks.engine"), json.loads(sys.stdin.readline()))
    print(json.dumps(work), flush=True)
    for line in sys.stdin:
        begun = time.process_time()
        population.run_epoch(1, json.loads(line))
        print(json.dumps(time.process_time() - begun), flush=True)


if __name__ == "__main__":
    main()
