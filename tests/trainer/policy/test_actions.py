"""Masks, sampling and log-probabilities of the factored action, against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, HEADS_OF_OP, Op
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.policy.actions import ActionSpace, Logits

SPACE = ActionSpace(slots=3, blueprints=4)


def random_logits(n: int, scale: float, dtype: torch.dtype = torch.float32, seed: int = 0) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(len(Op),), (len(Op), SPACE.sizes[1]), *((SPACE.sizes[1], size) for size in SPACE.sizes[2:])]
    return tuple(scale * torch.randn(n, *s, generator=generator, dtype=dtype) for s in shapes)


def random_legal(n: int, seed: int = 0) -> Tensor:
    """Any set of (op, slot), WAIT always among them."""
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(n, len(Op), SPACE.sizes[1], generator=generator) < 0.3
    legal[:, Op.WAIT, 0] = True
    return legal


def draws(n: int, seed: int = 0) -> Tensor:
    return rng.uniform(rng.key(seed, rng.Purpose.ACTION, torch.arange(n)), len(HEAD_NAMES))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_illegal_choices_are_never_drawn(scale: float) -> None:
    n = 10_000
    legal = random_legal(n)
    actions = SPACE.sample(random_logits(n, scale), legal, draws(n))
    op, slot = actions[:, 0], actions[:, 1]
    has_slot = op != Op.WAIT
    assert legal.any(-1)[torch.arange(n), op].all()
    assert legal[torch.arange(n), op, slot][has_slot].all()
    assert (actions >= 0).all()
    assert (actions < torch.tensor(SPACE.sizes)).all()
    assert set(op.tolist()) == set(range(len(Op)))


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-24])
def test_the_ends_of_the_unit_interval_draw_legal_choices(u: float) -> None:
    n = 2_000
    legal = random_legal(n, seed=1)
    actions = SPACE.sample(random_logits(n, 5.0, seed=1), legal, torch.full((n, len(HEAD_NAMES)), u))
    op, slot = actions[:, 0], actions[:, 1]
    assert legal.any(-1)[torch.arange(n), op].all()
    assert (legal[torch.arange(n), op, slot] | (op == Op.WAIT)).all()


def test_frequencies_are_the_probabilities() -> None:
    n = 40_000
    legal = random_legal(1, seed=3).expand(n, -1, -1)
    logits = tuple(head.expand(n, *head.shape[1:]) for head in random_logits(1, 1.0, seed=3))
    actions = SPACE.sample(logits, legal, draws(n, seed=3))
    found, counts = actions[:, :3].unique(dim=0, return_counts=True)
    evaluation = SPACE.evaluate(logits, actions, legal)
    for row, count in zip(found, counts, strict=True):
        mine = (actions[:, :3] == row).all(1).nonzero()[0, 0]
        p = evaluation.log_prob[mine, :3].sum().exp().item()
        assert count.item() / n == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    e = [math.exp(s - top) for s in scores]
    return [x / sum(e) for x in e]


def test_log_probability_is_that_of_a_plain_reference() -> None:
    n = 300
    logits, legal = random_logits(n, 2.0, torch.float64, seed=4), random_legal(n, seed=4)
    actions = SPACE.sample(logits, legal, draws(n, seed=4))
    evaluation = SPACE.evaluate(logits, actions, legal)
    for i in range(n):
        op, slot = Op(int(actions[i, 0])), int(actions[i, 1])
        for head, name in enumerate(HEAD_NAMES):
            if name != "op" and name not in HEADS_OF_OP[op]:
                assert evaluation.log_prob[i, head] == evaluation.entropy[i, head] == actions[i, head] == 0
                assert evaluation.choices[i, head] == 1
                continue
            if name == "op":
                open_ = [o for o in range(len(Op)) if legal[i, o].any()]
                scores = logits[0][i]
            elif name == "slot":
                open_ = [s for s in range(SPACE.sizes[1]) if legal[i, op, s]]
                scores = logits[1][i, op]
            else:
                open_ = list(range(SPACE.sizes[head]))
                scores = logits[head][i, slot]
            p = _softmax([scores[c].item() for c in open_])
            chosen = open_.index(int(actions[i, head]))
            assert evaluation.log_prob[i, head].item() == pytest.approx(math.log(p[chosen]), abs=1e-9)
            entropy = -sum(x * math.log(x) for x in p if x > 0)
            assert evaluation.entropy[i, head].item() == pytest.approx(entropy, abs=1e-9)
            assert evaluation.choices[i, head] == len(open_)


def test_joint_probabilities_sum_to_one() -> None:
    logits, legal = random_logits(1, 1.5, torch.float64, seed=5), random_legal(1, seed=5)
    every: list[tuple[int, ...]] = []
    for op in Op:
        if not legal[0, op].any():
            continue
        options = [[int(op)]]
        for head, name in enumerate(HEAD_NAMES[1:], start=1):
            if name not in HEADS_OF_OP[op]:
                options.append([0])
            elif name == "slot":
                options.append([s for s in range(SPACE.sizes[1]) if legal[0, op, s]])
            else:
                options.append(list(range(SPACE.sizes[head])))
        every += itertools.product(*options)
    actions = torch.tensor(every)
    wide = tuple(head.expand(len(every), *head.shape[1:]) for head in logits)
    log_prob = SPACE.evaluate(wide, actions, legal.expand(len(every), -1, -1)).log_prob
    assert log_prob.sum(-1).exp().sum().item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("op", list(Op))
def test_heads_that_do_not_matter_get_no_gradient(op: Op) -> None:
    logits = tuple(head.requires_grad_() for head in random_logits(50, 1.0, seed=6))
    legal = torch.ones(50, len(Op), SPACE.sizes[1], dtype=torch.bool)
    actions = torch.stack([torch.full((50,), int(op)), *(torch.arange(50) % k for k in SPACE.sizes[1:])], 1)
    evaluation = SPACE.evaluate(logits, actions * SPACE.relevant_OH[op], legal)
    (evaluation.log_prob.sum() + evaluation.entropy.sum()).backward()
    for head, name in enumerate(HEAD_NAMES):
        gradient = logits[head].grad
        assert gradient is not None
        assert bool(gradient.any()) == (name == "op" or name in HEADS_OF_OP[op]), name


def test_illegal_choices_get_no_gradient() -> None:
    logits = tuple(head.requires_grad_() for head in random_logits(200, 1.0, seed=7))
    legal = random_legal(200, seed=7)
    actions = SPACE.sample(logits, legal, draws(200))
    evaluation = SPACE.evaluate(logits, actions, legal)
    (evaluation.log_prob.sum() + evaluation.entropy.sum()).backward()
    assert logits[0].grad is not None
    assert logits[1].grad is not None
    assert not logits[0].grad[~legal.any(-1)].any()
    assert not logits[1].grad[~legal].any()
    assert logits[1].grad.isfinite().all()


def reference_floor(p: list[float], floor: float) -> list[float]:
    """Mixed with the uniform distribution, by its definition."""
    floor = min(floor, 1 / len(p))
    return [floor + (1 - len(p) * floor) * x for x in p]


FLOORS = st.lists(st.sampled_from([0.0, 1e-4, 0.02, 0.1, 0.3, 0.9]), min_size=8, max_size=8)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 30.0, 1000.0]), FLOORS)
def test_floored_distribution_is_that_of_its_definition(seed: int, scale: float, floors: list[float]) -> None:
    n = 4
    logits, legal = random_logits(n, scale, torch.float64, seed), random_legal(n, seed)
    logits = tuple(head.requires_grad_() for head in logits)
    floor_H = torch.tensor(floors, dtype=torch.float64)
    actions = SPACE.sample(logits, legal, draws(n, seed), floor_H)
    found = SPACE.evaluate(logits, actions, legal, floor_H)
    for i in range(n):
        op, slot = Op(int(actions[i, 0])), int(actions[i, 1])
        for head, name in enumerate(HEAD_NAMES):
            if name != "op" and name not in HEADS_OF_OP[op]:
                assert found.log_prob[i, head] == found.entropy[i, head] == actions[i, head] == 0
                continue
            open_ = list(range(SPACE.sizes[head]))
            scores = logits[head][i] if head == 0 else logits[head][i, op if head == 1 else slot]
            if head == 0:
                open_ = [o for o in open_ if legal[i, o].any()]
            elif head == 1:
                open_ = [s for s in open_ if legal[i, op, s]]
            p = reference_floor(_softmax([scores[c].item() for c in open_]), floors[head])
            chosen = p[open_.index(int(actions[i, head]))]
            assert found.log_prob[i, head].item() == pytest.approx(math.log(chosen), rel=1e-9, abs=1e-9)
            entropy = -sum(x * math.log(x) for x in p if x > 0)
            assert found.entropy[i, head].item() == pytest.approx(entropy, abs=1e-9)
    (found.log_prob.sum() + found.entropy.sum()).backward()
    for head in logits:
        assert head.grad is not None
        assert head.grad.isfinite().all()
    assert not logits[1].grad[~legal].any()  # type: ignore[index]


@given(st.integers(0, 10**6), st.sampled_from([0.001, 0.02, 0.15]))
def test_least_probable_legal_choice_has_the_floor(seed: int, floor: float) -> None:
    """With a policy that is sure: all but one legal op are at the floor, illegal ones at 0."""
    legal = random_legal(1, seed).expand(len(Op), -1, -1)
    sure = random_logits(1, 1.0, torch.float64, seed)[0]
    first_open = int(legal[0].any(-1).nonzero()[0, 0])
    sure[0, first_open] = 400.0
    logits = (sure.expand(len(Op), -1), *random_logits(len(Op), 1.0, torch.float64, seed)[1:])
    actions = torch.zeros(len(Op), len(HEAD_NAMES), dtype=torch.int64)
    actions[:, 0] = torch.arange(len(Op))
    floor_H = torch.tensor([floor] + [0.0] * 7, dtype=torch.float64)
    p = SPACE.evaluate(logits, actions, legal, floor_H).log_prob[:, 0].exp()
    open_ = legal[0].any(-1)
    assert p[~open_].eq(0).all()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-12)
    others = p[open_ & (torch.arange(len(Op)) != first_open)]
    assert others.numpy() == pytest.approx(floor, rel=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_floor_of_zero_changes_nothing(scale: float) -> None:
    n = 500
    logits, legal = random_logits(n, scale), random_legal(n)
    zero = torch.zeros(len(HEAD_NAMES))
    actions = SPACE.sample(logits, legal, draws(n), zero)
    assert (actions == SPACE.sample(logits, legal, draws(n))).float().mean() > 0.999
    mine = SPACE.evaluate(logits, actions, legal, zero)
    for found, plain in zip(mine, SPACE.evaluate(logits, actions, legal), strict=True):
        assert torch.equal(found, plain)


def test_frequencies_are_the_floored_probabilities() -> None:
    n = 40_000
    floor_H = torch.tensor([0.1, 0.2, 0.05, 0, 0, 0, 0, 0.3])
    legal = random_legal(1, seed=3).expand(n, -1, -1)
    logits = tuple(head.expand(n, *head.shape[1:]) for head in random_logits(1, 4.0, seed=3))
    actions = SPACE.sample(logits, legal, draws(n, seed=3), floor_H)
    found, counts = actions[:, :3].unique(dim=0, return_counts=True)
    evaluation = SPACE.evaluate(logits, actions, legal, floor_H)
    assert set(actions[:, 0].tolist()) == set(legal[0].any(-1).nonzero()[:, 0].tolist())
    for row, count in zip(found, counts, strict=True):
        mine = (actions[:, :3] == row).all(1).nonzero()[0, 0]
        p = evaluation.log_prob[mine, :3].sum().exp().item()
        assert count.item() / n == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))
