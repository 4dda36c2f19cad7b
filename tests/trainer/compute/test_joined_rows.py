"""What a GPU does with the rows of several tensors at once is what a CPU does with each."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.compute.joined_rows import (
    MAX_JOINED_NUMBERS,
    joined,
    parted,
    portions,
    rows_at,
    spread,
    zero_rows_,
)


def test_joined_numbers_come_apart_again_and_know_their_rows() -> None:
    tensors = [torch.randn(3, 2, 2), torch.randn(3), torch.randn(3, 1, 5)]
    assert all(torch.equal(a, b) for a, b in zip(parted(joined(tensors), tensors), tensors, strict=True))
    where = torch.tensor([True, False, True])
    for found, tensor in zip(parted(spread(where, tensors), tensors), tensors, strict=True):
        assert torch.equal(found, where.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    each = torch.arange(9).view(3, 3)
    for number, found in enumerate(parted(spread(each, tensors), tensors)):
        assert torch.equal(found.reshape(3, -1)[:, 0], each[number])


def test_parted_numbers_are_joined_without_a_copy() -> None:
    numbers, like = torch.arange(12.0), [torch.empty(3, 2), torch.empty(4), torch.empty(1, 2)]
    one, two, three = parted(numbers, like)
    assert joined([one, two, three]).data_ptr() == numbers.data_ptr()
    assert torch.equal(joined([two, three]), numbers[6:])
    for others in ([two, one], [one, three], [one.t(), two], [one, two.clone()]):
        assert torch.equal(joined(others), torch.cat([part.reshape(-1) for part in others]))


def test_rows_are_zeroed_in_all_tensors_or_by_tensor() -> None:
    where = torch.tensor([[True, False, False], [False, False, True]])
    for rows in (where, where[0]):
        tensors = [torch.ones(3, 2), torch.ones(3, 1, 4)]
        zero_rows_(tensors, rows)
        for tensor, zeroed in zip(tensors, rows.expand(2, -1), strict=True):
            assert torch.equal(tensor.flatten(1).any(1), ~zeroed)
    assert torch.equal(rows_at(where, [1]), where[1:])
    assert torch.equal(rows_at(torch.eye(3), [0, 2]), torch.eye(3)[[0, 2]])


def test_large_tensors_are_not_joined_with_others() -> None:
    """They would be copied; and on a CPU none is."""

    def tensor(count: int, dtype: torch.dtype = torch.float32, device: str = "meta") -> torch.Tensor:
        return torch.empty(2, count, dtype=dtype, device=device)

    large = MAX_JOINED_NUMBERS // 2 + 1
    given = [tensor(3), tensor(large), tensor(5, torch.int64), tensor(large - 1), tensor(large)]
    assert portions(given) == [[0, 3], [1], [2], [4]]
    assert portions([tensor(3, device="cpu")] * 2) == [[0], [1]]
