"""That missing waits between streams are found, and that work in a row is told from work at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.hosts.executor import GroupExecutor

from .stream_order import Stream, StreamOrder, may_overlap

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> StreamOrder:
    """What torch.cuda asks, it asks this order."""
    order = StreamOrder(DEVICE)
    monkeypatch.setattr(torch.cuda, "Stream", order.make_stream)
    monkeypatch.setattr(torch.cuda, "stream", order.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: order.current)
    return order


def tensor(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def write(order: StreamOrder, *tensors: Tensor, stream: Stream | None = None) -> None:
    with order.on(stream):
        order.issue("a writer", [order.touched(x, is_written=True) for x in tensors])


def read(order: StreamOrder, *tensors: Tensor, stream: Stream | None = None) -> None:
    with order.on(stream):
        order.issue("a reader", [order.touched(x, is_written=False) for x in tensors])


@pytest.mark.parametrize(("first", "second"), [(write, read), (read, write), (write, write)])
@pytest.mark.parametrize("waits", [True, False])
def test_only_a_wait_orders_two_streams(
    order: StreamOrder, first: Callable[..., None], second: Callable[..., None], waits: bool
) -> None:
    side, x = order.make_stream(), tensor(4)
    first(order, x)
    if waits:
        side.wait_stream(order.default)
    second(order, x, stream=side)
    assert bool(order.races) is not waits


def test_event_orders_what_came_before_it_alone(order: StreamOrder) -> None:
    side, early, late = order.make_stream(), tensor(4), tensor(4)
    write(order, early)
    event = order.make_event()
    event.record()
    write(order, late)
    side.wait_event(event)
    read(order, early, stream=side)
    assert not order.races
    read(order, late, stream=side)
    assert order.races


def test_two_streams_may_read_and_write_different_rows(order: StreamOrder) -> None:
    one, other, x = order.make_stream(), order.make_stream(), tensor(4, 8)
    write(order, x[:2], stream=one)
    write(order, x[2:], stream=other)
    assert not order.races
    read(order, x[1:3], stream=one)
    assert order.races


@pytest.mark.parametrize("waits", [True, False])
def test_freed_memory_another_stream_uses_is_found(order: StreamOrder, waits: bool) -> None:
    side, x = order.make_stream(), tensor(4)
    write(order, x)
    side.wait_stream(order.default)
    read(order, x, stream=side)
    if waits:
        order.default.wait_stream(side)
    del x
    write(order, tensor(4))
    assert bool(order.races) is not waits


@pytest.mark.parametrize("waits", [True, False])
def test_host_reads_what_arrived_only_after_its_event(order: StreamOrder, waits: bool) -> None:
    landing = torch.empty(4)
    event = order.make_event()
    write(order, landing)
    event.record()
    if waits:
        event.synchronize()
    order.issue_on_host("numpy", [order.touched(landing, is_written=False)])
    assert bool(order.races) is not waits


def test_replayed_graph_touches_what_was_captured(order: StreamOrder) -> None:
    side, x, out = order.make_stream(), tensor(4), tensor(4)
    with order.capture() as touched:
        read(order, x)
        write(order, out)
    write(order, x)
    assert not order.races, "a capture executes nothing"
    with order.on(side):
        order.issue("a graph", touched)
    assert order.races


def spans_of_groups(order: StreamOrder, executor: GroupExecutor) -> None:
    """Two groups, each with memory of its own, read what came before; their results are joined."""
    weights, made = tensor(4), [tensor(4), tensor(4)]
    write(order, weights)

    def work(i: int) -> None:
        for part in ("train", "validate"):
            with order.span(f"{part} {i}"):
                read(order, weights)
                write(order, made[i])

    executor.map(work)
    write(order, weights)
    read(order, *made)


def test_group_trains_while_the_one_before_validates(order: StreamOrder) -> None:
    spans_of_groups(order, GroupExecutor(2, 1, DEVICE))
    assert not order.races
    assert may_overlap(order.spans["validate 0"], order.spans["train 1"])
    assert not may_overlap(order.spans["train 0"], order.spans["validate 0"])


def test_groups_on_one_stream_are_seen_in_a_row(order: StreamOrder) -> None:
    executor = GroupExecutor(2, 1, DEVICE)
    executor._streams = executor._streams[:1] * 2
    spans_of_groups(order, executor)
    assert not may_overlap(order.spans["validate 0"], order.spans["train 1"])


def test_executor_without_its_waits_is_found(order: StreamOrder) -> None:
    order.heeds_waits = False
    spans_of_groups(order, GroupExecutor(2, 1, DEVICE))
    races = order.races["start"]
    assert "a reader reads what a writer writes: nothing orders them" in races
    assert "a writer writes what a reader reads: nothing orders them" in races
