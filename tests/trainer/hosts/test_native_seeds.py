"""Seeds by the kernel of our own: torch's results in float64, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.compute import native_convolution as native
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.convolutions import CONVOLUTIONS
from esper_overwatch.trainer.hosts.cnn import CNN
from esper_overwatch.trainer.hosts.seed_pool import GATE_MODULE, SeedPool
from esper_overwatch.trainer.hosts.slot_plan import NativeRun, SlotColumns, SlotRun, Topology
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS
from esper_overwatch.trainer.seeds.registry import blueprint
from tests.extensions import build_extension

torch.set_num_threads(1)
KINDS = [*BLUEPRINTS.values(), *(blueprint(n, "cnn") for n in ("attention:width=3", "bottleneck:width=5"))]


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel that is installed, or one compiled for these tests where it is absent or outdated."""
    with pytest.MonkeyPatch.context() as patch:
        if native.kernel is None or "older sources" in native.absence():
            built = build_extension("_native_convolution", tmp_path_factory.mktemp("built"))
            patch.setattr(native, "kernel", built)
        if native.absence():
            pytest.skip(native.absence())
        yield


@dataclass(frozen=True)
class Case:
    """Seeds of all kinds, states and styles in one slot of n hosts, at least one, some of them silent."""

    columns: SlotColumns
    channels: int
    h: Tensor
    grad: Tensor
    seed: int

    @property
    def n(self) -> int:
        return len(self.columns.blueprint)

    def pool(self, *, natively: bool) -> SeedPool:
        model = CNN((self.channels,), 1, (self.channels, *self.h.shape[2:]), 10)
        conv = CONVOLUTIONS["native" if natively else "grouped"]
        return SeedPool(model, KINDS, len(self.h), conv, natively=natively)

    def only(self, host: int) -> Case:
        """No other host has a seed."""
        mine = np.arange(self.n) == host
        columns = replace(
            self.columns, isolated=self.columns.isolated & mine, blended=self.columns.blended & mine
        )
        return replace(self, columns=columns)


@st.composite
def cases(draw: st.DrawFn, max_hosts: int = 6) -> Case:
    n, batch = draw(st.integers(1, max_hosts)), draw(st.integers(1, 4))
    size, seed = (draw(st.integers(1, 9)), draw(st.integers(1, 9))), draw(st.integers(0, 10_000))
    channels = draw(st.sampled_from([3, 8, 16, 20, 32]))
    numbers, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    state = numbers.integers(0, 3, n)
    state[0] = numbers.integers(1, 3)
    heard = torch.from_numpy((state == 2) & (numbers.random(n) > 0.2))
    h, grad = torch.randn(2, batch, n * channels, *size, generator=generator)
    return Case(
        SlotColumns(
            blueprint=numbers.integers(0, len(KINDS), n),
            style=numbers.integers(0, 3, n),
            isolated=state == 1,
            blended=state == 2,
            alpha=torch.rand(n, generator=generator) * heard,
        ),
        channels,
        h.contiguous(memory_format=torch.channels_last),
        grad.contiguous(memory_format=torch.channels_last),
        seed,
    )


def results(case: Case, *, natively: bool = True, fill: float | None = None) -> dict[str, Tensor]:
    """A slot's output without and with gradients, and those of its map and its seeds' and gates' weights."""
    dtype = torch.float32 if natively else torch.float64
    pool, generator = case.pool(natively=natively), torch.Generator().manual_seed(case.seed)
    weights = {
        name: (0.3 * torch.randn(case.n, *spec.shape, generator=generator)).to(dtype)
        for name, spec in pool.specs().items()
    }
    if fill is not None:
        weights = {name: torch.full_like(w, fill) for name, w in weights.items()}
    for w in weights.values():
        w.requires_grad_()
    columns = replace(case.columns, alpha=case.columns.alpha.to(dtype))
    runs = pool.gather(0, columns, np.arange(case.n), columns.isolated | columns.blended)
    assert all(isinstance(run, NativeRun if natively else SlotRun) for run in runs)
    used = sorted(pool.trained_modules(0, runs))
    h = case.h.to(dtype).requires_grad_()
    out = pool.run(0, h * 1.0, case.n, runs, weights)
    leaves = [h, *(weights[name] for name in used)]
    found = torch.autograd.grad(out, leaves, case.grad.to(dtype), allow_unused=True)
    with torch.no_grad():
        silent = pool.run(0, case.h.to(dtype, copy=True), case.n, runs, weights)
    gradients = zip(["h", *used], found, leaves, strict=True)
    return {
        "out": out.detach(),
        "silent": silent,
        **{name: torch.zeros_like(leaf) if g is None else g for name, g, leaf in gradients},
    }


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


@settings(database=None, derandomize=True)
@given(cases())
def test_seeds_are_run_and_blended_as_in_float64(case: Case) -> None:
    found, expected = results(case), results(case, natively=False)
    assert list(found) == list(expected)
    for name, exact in expected.items():
        scale = max(1.0, float(exact.abs().max()))
        torch.testing.assert_close(found[name].double(), exact, rtol=1e-3, atol=1e-4 * scale, msg=name)
    assert torch.equal(found["silent"], found["out"])


@settings(database=None, derandomize=True)
@given(cases())
def test_a_seed_alone_computes_the_same_bits(case: Case) -> None:
    together, alone = results(case), results(case.only(0))
    for name, values in alone.items():
        one, other = values, together[name]
        if values.dim() == 4:
            one, other = (t.unflatten(1, (case.n, -1))[:, :1] for t in (values, other))
            assert torch.equal(one, other), name
        else:
            assert torch.equal(one[0], other[0]), name


@settings(database=None, derandomize=True)
@given(cases())
def test_both_instruction_sets_give_equal_bits(case: Case) -> None:
    assert native.kernel is not None
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for name in native.kernel.instruction_sets():
            patch.setattr(native, "instruction_set", lambda name=name: name)
            found.append(results(case))
    for other in found[1:]:
        assert_equal(other, found[0])


@given(cases())
def test_a_silent_seed_that_is_not_finite_changes_no_bit(case: Case) -> None:
    blended = np.ones(case.n, dtype=np.bool_)
    columns = replace(case.columns, isolated=~blended, blended=blended, alpha=torch.zeros(case.n))
    found = results(replace(case, columns=columns), fill=float("nan"))
    assert torch.equal(found["out"], case.h)
    assert torch.equal(found["silent"], case.h)
    assert torch.equal(found["h"], case.grad)
    gates = [values for name, values in found.items() if name.endswith(GATE_MODULE)]
    assert all(values.eq(0.0).all() for values in gates)


@given(cases())
def test_a_newborn_leaves_every_bit(case: Case) -> None:
    pool = case.pool(natively=True)
    keys = rng.key(1, rng.Purpose.SEED, torch.arange(case.n))
    weights = {name: torch.zeros(case.n, *spec.shape) for name, spec in pool.specs().items()}
    columns = replace(case.columns, blended=~case.columns.isolated)
    born = Topology.of(
        *(np.full((case.n, 1), Stage.GERMINATED), columns.blueprint[:, None], columns.style[:, None])
    )
    pool.germinate(weights, born, 0, keys)
    runs = pool.gather(0, columns, np.arange(case.n), np.ones(case.n, np.bool_))
    with torch.no_grad():
        assert torch.equal(pool.run(0, case.h.clone(), case.n, runs, weights), case.h)


def test_a_row_runs_the_seed_of_its_owner() -> None:
    """As in validation, where a host may have several rows."""
    case = Case(
        SlotColumns(
            blueprint=np.array([5, 2]),
            style=np.array([0, 1]),
            isolated=np.zeros(2, np.bool_),
            blended=np.ones(2, np.bool_),
            alpha=torch.tensor([0.5, 1.0]),
        ),
        8,
        torch.randn(3, 16, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.zeros(0),
        0,
    )
    pool = case.pool(natively=True)
    weights = {name: torch.randn(2, *spec.shape) for name, spec in pool.specs().items()}
    first, second = case.h.split(8, dim=1)
    rows = torch.cat([second, first, second], dim=1).contiguous(memory_format=torch.channels_last)
    owners = np.array([1, 0, 1])
    with torch.no_grad():
        runs = pool.gather(0, case.columns, owners, np.array([True, True, False]))
        out = pool.run(0, rows.clone(), 3, runs, weights)
        runs = pool.gather(0, case.columns, np.arange(2), np.ones(2, np.bool_))
        expected = pool.run(0, case.h.clone(), 2, runs, weights)
    assert torch.equal(out[:, 8:16], expected[:, :8])
    assert torch.equal(out[:, :8], expected[:, 8:])
    assert torch.equal(out[:, 16:], second)


@settings(database=None, derandomize=True)
@given(cases())
def test_a_map_that_is_not_kept_gives_the_same_bits(case: Case) -> None:
    pool, conv = case.pool(natively=True), CONVOLUTIONS["native"]
    generator = torch.Generator().manual_seed(case.seed)
    weights = {
        name: torch.randn(case.n, *spec.shape, generator=generator).requires_grad_()
        for name, spec in pool.specs().items()
    }
    kernel = torch.randn(case.n, case.channels, case.channels, 1, 1, generator=generator).requires_grad_()
    scale, shift = torch.randn(2, case.n, case.channels, generator=generator)
    runs = pool.gather(0, case.columns, np.arange(case.n), case.columns.isolated | case.columns.blended)
    leaves = [kernel, *(weights[name] for name in sorted(pool.trained_modules(0, runs)))]
    found = []
    for keep in (True, False):
        h = conv.batch_normed(case.h, kernel, scale, shift)
        place = h.data_ptr()
        out = pool.run(0, h, case.n, runs, weights, keep=keep)
        is_heard = bool(case.columns.blended.any())
        assert (out.data_ptr() == place) != (keep and is_heard)
        end = conv.batch_normed(out, kernel, scale, shift)
        found.append([end.detach(), *torch.autograd.grad(end, leaves, case.grad)])
    for kept, changed in zip(*found, strict=True):
        assert torch.equal(kept, changed)
