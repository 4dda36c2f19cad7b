"""Ranks' parts of a checkpoint, divided for another number: a run saved by K ranks goes on with any.

A rank's state consists of rows of its envs and of what is the same on all ranks (policy, optimizer,
held-out evaluation). Random numbers are hashes of an env's index, so an env's rows are all that it takes with
it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

SAME_ON_ALL = frozenset({("evaluation",), ("agent", "network"), ("agent", "ppo")})
"""Parts of a trainer's state that are not rows of envs."""
SECOND_AXIS = frozenset(
    {("rollout",), ("reward", "gains"), ("agent", "observer", "past"), ("agent", "observer", "recent")}
)
"""Parts whose tensors have the envs in their second dimension; in all others it is the first."""

Path = tuple[str, ...]


def redistribute(state: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Redistribute a checkpoint as `ranks` ranks would have saved it.

    Args:
        state: what `RunControl.state_dict` gave, on any number of ranks.
        ranks: divides the number of envs.
    """
    others = [_decode(tensor) for tensor in state.get("other_ranks", [])]
    whole = join([state["trainer"], *(other["trainer"] for other in others)])
    trainers = split(whole, ranks)
    parameters = state.get("parameters", {})
    return {
        **state,
        "trainer": trainers[0],
        "other_ranks": [_encode({"trainer": each, "parameters": parameters}) for each in trainers[1:]],
    }


def join(states: Sequence[Any], path: Path = ()) -> Any:
    """The state of one rank with all envs from those of several, in the order of ranks."""
    first = states[0]
    if path in SAME_ON_ALL:
        return first
    if isinstance(first, Mapping):
        return {key: join([state[key] for state in states], (*path, key)) for key in first}
    if isinstance(first, list | tuple):
        return [join(list(each), (*path, str(i))) for i, each in enumerate(zip(*states, strict=True))]
    return torch.cat(list(states), _axis(path)) if isinstance(first, torch.Tensor) else first


def split(state: Any, ranks: int, path: Path = ()) -> list[Any]:
    """The opposite of `join`: by rank, its envs' rows."""
    if path in SAME_ON_ALL:
        return [state] * ranks
    if isinstance(state, Mapping):
        parts = {key: split(value, ranks, (*path, key)) for key, value in state.items()}
        return [{key: part[rank] for key, part in parts.items()} for rank in range(ranks)]
    if isinstance(state, list | tuple):
        lists = [split(value, ranks, (*path, str(i))) for i, value in enumerate(state)]
        return [[part[rank] for part in lists] for rank in range(ranks)]
    if isinstance(state, torch.Tensor):
        return [rows.clone() for rows in state.tensor_split(ranks, _axis(path))]
    return [state] * ranks


def _axis(path: Path) -> int:
    return int(any(path[:length] in SECOND_AXIS for length in range(1, len(path) + 1)))


def _decode(tensor: torch.Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(
        io.BytesIO(bytes(tensor.numpy())), map_location="cpu", weights_only=True
    )
    return state


def _encode(state: dict[str, Any]) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)
