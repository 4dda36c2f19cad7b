"""What a GPU does with the rows of several tensors at once is what a CPU does with each."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.compute.joined_rows import joined, parted, spread


def test_joined_numbers_come_apart_again_and_know_their_rows() -> None:
    tensors = [torch.randn(3, 2, 2), torch.randn(3), torch.randn(3, 1, 5)]
    assert all(torch.equal(a, b) for a, b in zip(parted(joined(tensors), tensors), tensors, strict=True))
    where = torch.tensor([True, False, True])
    for found, tensor in zip(parted(spread(where, tensors), tensors), tensors, strict=True):
        assert torch.equal(found, where.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    each = torch.arange(9).view(3, 3)
    for number, found in enumerate(parted(spread(each, tensors), tensors)):
        assert torch.equal(found.reshape(3, -1)[:, 0], each[number])
