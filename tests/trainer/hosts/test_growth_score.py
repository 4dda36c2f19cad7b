"""What slots would gain from new weights: against kernels that are really there, and without effect."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import WITH_SEED
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.growth_score import NUM_BATCHES, growth_scores, kernel_gradient
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.seeds.table import is_in
from tests.trainer.hosts.plots import config, every_state, plant

torch.set_num_threads(1)
DIGITS = load("digits")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("causal", "width"), [(False, 5), (False, 1), (True, 1)])
def test_gradient_is_that_of_a_convolution_of_zeros(causal: bool, width: int) -> None:
    x, target = random(3, 2 * 4, 6, width), random(3, 2 * 4, 6, width, seed=1)
    kernel = torch.zeros(8, 1, 3, 3 if width > 1 else 1, dtype=torch.float64, requires_grad=True)
    side = 1 if width > 1 else 0
    padded = F.pad(x, (side, side, 2, 0) if causal else (side, side, 1, 1))
    out = x + F.conv2d(padded, kernel, groups=8)
    loss = (out.tanh() * target).sum()
    (expected,) = torch.autograd.grad(loss, [kernel])
    gradient = (1 - x.tanh().square()) * target
    found = kernel_gradient(x, gradient, 2, causal=causal)
    torch.testing.assert_close(found, expected.view(2, 4, -1))


def test_scores_are_products_of_different_batches() -> None:
    kernels = [random(1, 3, 9, seed=k) for k in range(4)]
    apart = [k - k.mean(-1, keepdim=True) for k in kernels]
    square = sum(float(k.square().sum()) for k in kernels) / 4

    def common(parts: list[Tensor]) -> float:
        pairs = [float((a * b).sum()) for i, a in enumerate(parts) for j, b in enumerate(parts) if i != j]
        return sum(pairs) / len(pairs)

    expected = [
        number
        for parts in (kernels, apart)
        for number in (max(common(parts), 0) ** 0.5, common(parts) / square)
    ]
    assert growth_scores(kernels)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_batches_that_agree_say_so_and_noise_does_not() -> None:
    same = random(5, 8, 9)
    norm, agreement, _, _ = growth_scores([same] * 4).unbind(-1)
    torch.testing.assert_close(norm, same.square().sum((1, 2)).sqrt().float())
    torch.testing.assert_close(agreement, torch.ones(5))
    flat = random(5, 8, 1).expand(5, 8, 9)  # the same at every place: no kernel is needed for it
    assert (growth_scores([flat] * 4)[:, 2:].abs() < 1e-6).all()
    noise = growth_scores([random(200, 8, 9, seed=k) for k in range(4)])
    assert noise[:, 1].mean().abs() < 0.02
    assert not growth_scores([torch.zeros(2, 3, 9)] * 4).any()


def scored(population: Population) -> Tensor:
    population.begin_episode(1)
    population.set_topology(
        *(getattr(population.table, name).numpy() for name in ("stage", "blueprint", "style"))
    )
    return population.run_epoch(1, 0, growth=True).measurements.growth


def test_scores_of_a_host_are_those_of_modules_with_kernels() -> None:
    cfg = config(2, (4, 8), host__kernel=3, task__batch_size=32, task__batches_per_epoch=3)
    population = Population(cfg, DIGITS, "cpu", dtype=torch.float64)
    found = scored(population)
    weights = {name: w.detach()[1] for name, w in population.state_dict()["weights"].items()}
    kernels: list[list[Tensor]] = [[], []]
    for step in range(3, 3 + NUM_BATCHES):
        x, labels = population.groups[0].batches.at(1, step)
        x, imagined = x[:, x.shape[1] // 2 :], []
        for block, channels in enumerate((4, 8)):
            x = F.max_pool2d(x, 2) if block else x
            x = F.conv2d(x, weights[f"block{block}.conv.weight"], padding=1)
            scale, shift = (weights[f"block{block}.norm.{name}"] for name in ("weight", "bias"))
            x = F.batch_norm(x, None, None, scale, shift, training=True).relu()
            imagined.append(torch.zeros(channels, 1, 3, 3, dtype=x.dtype, requires_grad=True))
            x = x + F.conv2d(x, imagined[-1], padding=1, groups=channels)
        logits = F.linear(x.mean((2, 3)), weights["head.weight"], weights["head.bias"])
        for slot, g in enumerate(torch.autograd.grad(F.cross_entropy(logits, labels[1]), imagined)):
            kernels[slot].append(g.view(1, -1, 9))
    expected = torch.cat([growth_scores(parts) for parts in kernels])
    torch.testing.assert_close(found[1], expected, rtol=1e-4, atol=1e-7)
    population.close()


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_looking_changes_nothing_and_passes_over_taken_slots(plan: str) -> None:
    columns = {name: column[:24] for name, column in every_state().items()}
    ends = []
    for growth in (False, True):
        cfg = config(columns["stage"].shape[0], (4, 8, 16), envs__plan=plan, task__batch_size=32)
        population = Population(cfg, DIGITS, "cpu")
        plant(population, columns)
        first = population.run_epoch(1, 0, growth=growth).measurements
        second = population.run_epoch(1, 1).measurements
        ends.append((population.state_dict()["weights"], second.val_loss))
        assert first.growth.isnan().all() == (not growth)
        assert second.growth.isnan().all()
        if growth:
            empty = ~first.growth.isnan().any(-1)
            assert empty.any()
            assert torch.equal(empty, ~is_in(columns["stage"], WITH_SEED))
        population.close()
    (weights, loss), (after, loss_after) = ends
    assert torch.equal(loss, loss_after)
    assert all(torch.equal(w, after[name]) for name, w in weights.items())


def test_scores_do_not_depend_on_the_grouping() -> None:
    found = []
    for size in (4, 2):
        cfg = config(4, (8, 8), envs__group_size=size, task__batch_size=32)
        population = Population(cfg, DIGITS, "cpu")
        found.append(scored(population))
        population.close()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_scores_in_half_precision_are_about_those_in_full(dtype: str) -> None:
    found = []
    for amp in ("off", dtype):
        cfg = config(3, (8, 8), envs__plan="gather", amp__dtype=amp, task__batch_size=32)
        population = Population(cfg, DIGITS, "cpu")
        found.append(scored(population))
        population.close()
    full, half = found
    norms = [0, 2]
    torch.testing.assert_close(half[..., norms], full[..., norms], rtol=0.3, atol=0.02)
    torch.testing.assert_close(half[..., 1], full[..., 1], rtol=0.0, atol=0.15)
