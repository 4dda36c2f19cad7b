"""The recurrent actor-critic: the same by steps and by sequences, and values that keep their units."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.network import LSTM, ActorCritic
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS, Observation

T, N, S = 7, 4, 3


def network(seed: int = 0) -> ActorCritic:
    return ActorCritic(ActionSpace(S, 4), hidden=16, seed=seed).double()


def sequence(seed: int = 0) -> Observation:
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(T, N, len(BASE_COLUMNS.names), generator=g, dtype=torch.float64)
    slot = torch.randn(T, N, S, len(SLOT_COLUMNS.names), generator=g, dtype=torch.float64)
    base[torch.rand(base.shape, generator=g) < 0.1] = torch.nan
    base[..., len(BASE_COLUMNS.measured) :] = base[..., len(BASE_COLUMNS.measured) :].nan_to_num()
    return Observation(base, slot, torch.randint(-1, 4, (T, N, S), generator=g))


def test_a_sequence_is_its_steps() -> None:
    net, seen = network(), sequence()
    reset = torch.rand(T, N) < 0.2
    whole = net(seen, net.initial(N), reset)
    hidden = net.initial(N)
    for t in range(T):
        step = Observation(seen.base[t : t + 1], seen.slot[t : t + 1], seen.blueprint[t : t + 1])
        out = net(step, hidden, reset[t : t + 1])
        hidden = out.h[0], out.c[0]
        torch.testing.assert_close(out.value[0], whole.value[t])
        for one, all_ in zip(out.logits, whole.logits, strict=True):
            torch.testing.assert_close(one[0], all_[t])


def test_a_reset_forgets_that_env_and_no_other() -> None:
    net, seen = network(), sequence()
    reset = torch.zeros(T, N, dtype=torch.bool)
    plain = net(seen, net.initial(N), reset)
    reset[3, 1] = True
    cut = net(seen, net.initial(N), reset)
    tail = Observation(seen.base[3:], seen.slot[3:], seen.blueprint[3:])
    fresh = net(tail, net.initial(N), torch.zeros(T - 3, N, dtype=torch.bool))
    torch.testing.assert_close(cut.value[3:, 1], fresh.value[:, 1])
    others = [0, 2, 3]
    assert torch.equal(cut.value[:, others], plain.value[:, others])
    assert torch.equal(cut.value[:3], plain.value[:3])
    assert not torch.allclose(cut.value[3:, 1], plain.value[3:, 1])


def test_the_lstm_is_the_standard_one() -> None:
    mine = LSTM(5, 8, torch.Generator().manual_seed(0)).double()
    standard = torch.nn.LSTM(5, 8).double()
    with torch.no_grad():
        standard.weight_ih_l0.copy_(mine.input.weight)
        standard.weight_hh_l0.copy_(mine.recurrent.weight)
        standard.bias_ih_l0.copy_(mine.input.bias)
        standard.bias_hh_l0.zero_()
    x, h, c = torch.randn(T, N, 5).double(), torch.randn(N, 8).double(), torch.randn(N, 8).double()
    hs, cs = mine(x, (h, c), torch.zeros(T, N, dtype=torch.bool))
    expected, (h_last, c_last) = standard(x, (h[None], c[None]))
    torch.testing.assert_close(hs, expected)
    torch.testing.assert_close(hs[-1], h_last[0])
    torch.testing.assert_close(cs[-1], c_last[0])


def test_initial_weights_are_orthogonal_and_the_forget_gate_is_open() -> None:
    net = network()
    for gate in net.lstm.recurrent.weight.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(16).double(), atol=1e-6, rtol=0)
    assert net.lstm.input.bias[16:32].eq(1).all()
    assert net.lstm.input.bias[:16].eq(0).all()


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = network(5).state_dict()
    torch.manual_seed(2)
    second = network(5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(network(6).critic.weight, network(5).critic.weight)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_renormalising_the_critic_keeps_its_values(scale: float) -> None:
    net, seen = network(), sequence()
    reset = torch.zeros(T, N, dtype=torch.bool)

    def values() -> torch.Tensor:
        return net.value(net(seen, net.initial(N), reset).value)

    before = values()
    for k in range(3):
        net.rescale_value(scale * torch.randn(T, N).double() + k * scale)
        torch.testing.assert_close(values(), before, rtol=1e-4, atol=1e-5)


def test_slots_are_told_apart_by_their_place_only() -> None:
    """Two slots that look alike get different logits; with equal places they would get the same."""
    net, seen = network(), sequence()
    seen.slot[:, :, 1], seen.blueprint[:, :, 1] = seen.slot[:, :, 0], seen.blueprint[:, :, 0]
    with torch.no_grad():
        for head in net.heads.values():
            torch.nn.init.normal_(head.weight)
        reset = torch.zeros(T, N, dtype=torch.bool)
        apart = net(seen, net.initial(N), reset).logits[1]
        net.place[1] = net.place[0]
        alike = net(seen, net.initial(N), reset).logits[1]
    assert not torch.allclose(apart[..., 0], apart[..., 1])
    torch.testing.assert_close(alike[..., 0], alike[..., 1])
