"""Learning rates and the norm of the gradients of a PyTorch optimizer, published by its own hook."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from esper_overwatch.protocol.publishing.run import PublishedRun

from .training_run import TrainingRun

logger = logging.getLogger(__name__)


def watch_optimizer(
    run: PublishedRun, optimizer: torch.optim.Optimizer, *, every: int = 10, name: str = "optimizer"
) -> RemovableHandle:
    """Publish `NAME/grad_norm` and `NAME/learning_rate` of the optimizer's steps.

    The norm is the Euclidean one over all gradients as the step finds them: after clipping, and after
    `GradScaler` has unscaled them. On a GPU nothing waits for it. With several groups of parameters the rates
    are `NAME/0/learning_rate` and so on. Gradients that are sharded over processes (FSDP) are not counted.

    Args:
        run: where to. The optimizer's steps are counted from the one after its newest.
        optimizer: any.
        every: steps between two.
        name: of the group.

    Returns:
        A handle; its `remove()` ends this.

    Raises:
        ValueError: `every` is not positive.
    """
    if every < 1:
        raise ValueError(f"every = {every}: must be 1 or more")
    training = TrainingRun(run)
    step = run.step

    def publish_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal step
        step += 1
        if step % every:
            return
        try:
            values = _read(optimizer)
        except Exception:
            logger.warning("%s is not watched any more", name, exc_info=True)
            handle.remove()
            return
        training.log({f"{name}/{key}": value for key, value in values.items()}, step)

    handle = optimizer.register_step_pre_hook(publish_step)
    return handle


def _read(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = optimizer.param_groups
    prefixes = [""] if len(groups) == 1 else [f"{number}/" for number in range(len(groups))]
    values = {
        f"{prefix}learning_rate": group["lr"]
        for prefix, group in zip(prefixes, groups, strict=True)
        if "lr" in group
    }
    gradients = [p.grad.detach() for group in groups for p in group["params"] if p.grad is not None]
    gradients = [
        g.coalesce().values() if g.is_sparse else g for g in gradients if not hasattr(g, "full_tensor")
    ]
    if gradients:
        values["grad_norm"] = torch.nn.utils.get_total_norm(gradients)
    return values
