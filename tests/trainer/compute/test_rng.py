"""Stateless random numbers: known answers, statistics, and independence of shape and company."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.rng import Purpose

torch.set_num_threads(1)
MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The reference, in Python's integers: next output of a generator in `state`."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("start", [0, 1, 1234567, MASK, 1 << 63])
def test_bits_are_the_outputs_of_splitmix64(start: int) -> None:
    signed = start - (1 << 64) if start >> 63 else start
    words = rng.bits(torch.tensor(signed), 5).tolist()
    state, expected = start, []
    for _ in range(5):
        expected.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert [w & MASK for w in words] == expected


def test_the_published_first_outputs_from_1234567() -> None:
    words = [w & MASK for w in rng.bits(torch.tensor(1234567), 3).tolist()]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_key_depends_on_every_coordinate_and_on_their_order() -> None:
    keys = {
        int(rng.key(seed, p, a, b)) for seed in range(5) for p in Purpose for a in range(6) for b in range(6)
    }
    assert len(keys) == 5 * len(Purpose) * 36
    assert int(rng.key(1, Purpose.HOST, 2, 3)) != int(rng.key(1, Purpose.HOST, 3, 2))
    assert int(rng.key(1, Purpose.HOST, 2)) != int(rng.key(1, Purpose.HOST, 2, 0))


def test_draws_are_independent_of_their_neighbours() -> None:
    envs = torch.arange(100)
    together = rng.normal(rng.key(7, Purpose.SEED, envs, 3), 6)
    assert torch.equal(together[42], rng.normal(rng.key(7, Purpose.SEED, 42, 3), 6))
    assert torch.equal(
        rng.bits(rng.key(7, Purpose.SEED, envs), 3), rng.bits(rng.key(7, Purpose.SEED, envs), 9)[:, :3]
    )


def test_uniform_is_uniform_open_and_the_same_in_both_dtypes() -> None:
    u = rng.uniform(rng.key(3, Purpose.ACTION, torch.arange(500)), 1000, torch.float64)
    n = u.numel()
    assert u.min() > 0
    assert u.max() < 1
    assert torch.equal(u, rng.uniform(rng.key(3, Purpose.ACTION, torch.arange(500)), 1000).double())
    assert abs(float(u.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / n)
    counts = torch.histc(u, 100, 0, 1)
    chi2 = float(((counts - n / 100) ** 2 / (n / 100)).sum())
    assert 50 < chi2 < 160
    for lag in (u[:, :-1] * u[:, 1:], u[:-1] * u[1:]):
        assert abs(float(lag.mean()) - 0.25) < 5 * math.sqrt(7 / 144 / lag.numel())


def test_extreme_words_stay_inside_the_interval() -> None:
    words = torch.tensor([0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1])
    odd = (rng._shift_right(words, 41) << 1) | 1
    u = odd.to(torch.float32) * 2.0**-24
    assert (u > 0).all()
    assert (u < 1).all()


def test_normal_has_the_moments_of_a_normal() -> None:
    x = rng.normal(rng.key(4, Purpose.SYNTHETIC, torch.arange(501)), 999, torch.float64).flatten()
    n = x.numel()
    assert abs(float(x.mean())) < 5 / math.sqrt(n)
    assert abs(float(x.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((x**3).mean())) < 5 * math.sqrt(15 / n)
    assert abs(float((x**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    assert abs(float((x.abs() < 1).double().mean()) - 0.682689) < 5 * math.sqrt(0.22 / n)


def test_permutations_are_permutations_and_every_place_is_equally_likely() -> None:
    orders = rng.permutation(rng.key(2, Purpose.ORDER, torch.arange(6000)), 5)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(5).expand(6000, 5))
    places = torch.stack([(orders == k).float().mean(0) for k in range(5)])
    assert (places - 0.2).abs().max() < 5 * math.sqrt(0.16 / 6000)
    codes = (orders * torch.tensor([625, 125, 25, 5, 1])).sum(1)
    assert len(codes.unique()) == math.factorial(5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_device_draws_the_same_bits() -> None:
    envs = torch.arange(64)
    on_cpu = rng.bits(rng.key(5, Purpose.HOST, envs), 100)
    on_gpu = rng.bits(rng.key(5, Purpose.HOST, envs.cuda()), 100)
    assert torch.equal(on_cpu, on_gpu.cpu())


@given(
    st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(-(2**40), 2**40), max_size=4), st.integers(0, 4)
)
def test_integers_fold_to_the_same_key_as_tensors(seed: int, coordinates: list[int], first: int) -> None:
    mixed = [torch.tensor(c) if i >= first else c for i, c in enumerate(coordinates)]
    expected = rng.fold(torch.tensor(seed), torch.tensor(int(Purpose.HOST)))
    for coordinate in coordinates:
        expected = rng.fold(expected, torch.tensor(coordinate))
    assert torch.equal(rng.key(seed, Purpose.HOST, *mixed), expected)
    assert torch.equal(rng.fold(expected, 7), rng.fold(expected, torch.tensor(7)))
