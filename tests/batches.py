"""Batches as the I/O thread makes them."""

from __future__ import annotations

from collections.abc import Iterable

from esper_overwatch.protocol.codec.json_lines import Batch, Encoder
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.messages.vocabulary import STREAMS


def batch_of(seq: int, ts: int, ctx: Context, event: object) -> Batch:
    """One event, with this number in its stream."""
    return Encoder(dict.fromkeys(STREAMS, seq - 1)).add(ts, ctx, event)


def batches_of(events: Iterable[object], first: int = 1) -> list[Batch]:
    """Events that come together, each stream numbered from `first`."""
    encoder = Encoder(dict.fromkeys(STREAMS, first - 1))
    for n, event in enumerate(events, first):
        encoder.add(n, Context(), event)
    return encoder.take()
