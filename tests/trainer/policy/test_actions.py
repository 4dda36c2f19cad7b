"""Masks, sampling and log-probabilities of the factored action, against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
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
                assert evaluation.max_entropy[i, head] == 0.0
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
            assert evaluation.max_entropy[i, head].item() == pytest.approx(math.log(len(open_)))


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
