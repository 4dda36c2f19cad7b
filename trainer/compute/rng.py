"""Counter-based random numbers: every draw is a pure function of a key and a position.

A key is made from the run's seed, a purpose and any number of coordinates (env, round, epoch, ...), so that
results depend neither on how envs are grouped, nor on what other envs do, nor on the state of a generator:
a checkpoint holds none. All of it is wrapping int64 arithmetic on tensors, the same on every device.

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014, with the constants of Stafford's variant 13); position i of a key is the i-th
output of SplitMix64 started at that key. That a hashed counter makes a sound generator is Salmon, Moraes,
Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

from .pointwise import FusedFormula


class Purpose(IntEnum):
    """Purpose of a key; draws of different purposes never meet."""

    SPLIT = 1
    HOST = 2
    SEED = 3
    ORDER = 4
    ACTION = 5
    POLICY = 6
    MINIBATCH = 7
    SYNTHETIC = 8
    AUGMENT = 9
    SHAPLEY = 10
    GENERATED = 11
    TASK = 12
    DROPOUT = 13


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)
_WORD_MASK = (1 << 64) - 1


def _mix_int(value: int) -> int:
    """`mix` of one integer, modulo 2**64."""
    value &= _WORD_MASK
    value = (value ^ value >> 30) * _MIX1 & _WORD_MASK
    value = (value ^ value >> 27) * _MIX2 & _WORD_MASK
    return value ^ value >> 31


def _fold_int(key: int, coordinate: int) -> int:
    """`fold` of two integers, modulo 2**64."""
    return _mix_int((key & _WORD_MASK ^ _mix_int(coordinate + _GOLDEN)) + _GOLDEN)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_plainly(x: Tensor) -> tuple[Tensor]:
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return (x ^ _shift_right(x, 31),)


MIX = FusedFormula(
    """template <typename T> void mix(T x, T& out) {
        unsigned long long word = x;
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
        word = (word ^ word >> 27) * 0x94D049BB133111EBull;
        out = T(word ^ word >> 31);
    }""",
    1,
    _mix_plainly,
)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of 64 bits; int64, any shape."""
    return MIX(x)[0]


def fold(key: Tensor, coordinate: int | Tensor) -> Tensor:
    """The key one level down: int64, broadcast of `key` and `coordinate`; a GPU is not waited for."""
    if not isinstance(coordinate, Tensor):
        return mix((key ^ _signed(_mix_int(coordinate + _GOLDEN))) + _GOLDEN)
    inner = coordinate.to(device=key.device, dtype=torch.int64) + _GOLDEN
    return mix((key ^ mix(inner)) + _GOLDEN)


def key(seed: int, purpose: Purpose, *coordinates: int | Tensor) -> Tensor:
    """A key from the run's seed, a purpose and coordinates.

    Integers are folded on the host up to the first tensor, so that nothing is copied to a GPU.

    Args:
        coordinates: ints or int64 tensors that broadcast together; the device is that of the first tensor.

    Returns:
        int64 of the coordinates' broadcast shape.
    """
    known = _fold_int(seed, int(purpose))
    result: Tensor | None = None
    for coordinate in coordinates:
        if result is not None:
            result = fold(result, coordinate)
        elif isinstance(coordinate, Tensor):
            result = mix((mix(coordinate.to(torch.int64) + _GOLDEN) ^ _signed(known)) + _GOLDEN)
        else:
            known = _fold_int(known, coordinate)
    return torch.tensor(_signed(known), dtype=torch.int64) if result is None else result


def bits(key: Tensor, count: int) -> Tensor:
    """int64 [*key.shape, count] of uniformly distributed 64-bit words."""
    return bits_at(key.unsqueeze(-1), torch.arange(count, dtype=torch.int64, device=key.device))


def bits_at(key: Tensor, position: Tensor) -> Tensor:
    """The words at some positions of some keys, which broadcast, int64."""
    return mix(key + (position + 1) * _GOLDEN)


def uniform(key: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[*key.shape, count] uniform on the open interval (0, 1).

    The values are the odd multiples of 2**-24, exact in float32: the same numbers in every dtype, never 0
    or 1, with mean exactly one half.
    """
    return to_uniform(bits(key, count), dtype)


def to_uniform(words: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `uniform` makes of 64-bit words."""
    odd = (_shift_right(words, 41) << 1) | 1
    return odd.to(dtype) * 2.0**-24


def normal(key: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[*key.shape, count] standard normal, by Box and Muller's transform (1958)."""
    pairs = (count + 1) // 2
    u = uniform(key, 2 * pairs, dtype)
    radius = torch.sqrt(-2.0 * torch.log(u[..., :pairs]))
    angle = (2.0 * math.pi) * u[..., pairs:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[..., :count]


def permutation(key: Tensor, count: int) -> Tensor:
    """int64 [*key.shape, count]: an independent random order of 0..count-1 for every key."""
    return torch.argsort(bits(key, count), dim=-1, stable=True)
