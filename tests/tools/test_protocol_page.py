"""The reference page of the wire, made from the types."""

from __future__ import annotations

import re

import msgspec

from esper_overwatch.protocol.journal import writer as journal
from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.messages.events import EVENTS
from esper_overwatch.protocol.runs import Connection
from esper_overwatch.protocol.server import rate_limiter
from esper_overwatch.protocol.server.emitter import MAX_QUEUED
from esper_overwatch.protocol.server.mailbox import MAX_MAILBOX_COMMANDS
from esper_overwatch.protocol.server.publisher import MAX_RING_BYTES, MAX_RING_EVENTS
from esper_overwatch.protocol.server.queries import MAX_ENDED
from esper_overwatch.protocol.server.rate_limiter import REQUESTS_PER_SECOND
from esper_overwatch.protocol.server.reply_cache import MAX_REMEMBERED, REMEMBERED_SECONDS
from esper_overwatch.protocol.server.reply_sender import MAX_WAITING_BYTES
from esper_overwatch.protocol.server.request_handler import BURST_REFUSALS, MAX_REQUEST_BYTES
from esper_overwatch.protocol.server.sockets import (
    MAX_INBOUND_BYTES,
    RECEIVE_HIGH_WATER,
    REPLY_HIGH_WATER,
    SEND_HIGH_WATER,
)
from esper_overwatch.protocol.storage.keys import KeyPair
from tools.protocol_page import PAGE, fill_in


def test_the_reference_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill_in(page) == page, "run: python -m tools.protocol_page"
    for name in (*EVENTS, *METHODS):
        assert f"`{name}`" in page


def test_the_reference_page_says_what_fields_mean() -> None:
    row = "| `until` | `int` | Wall time of its end, microseconds. |"
    assert row in PAGE.read_text(encoding="utf-8")


def test_the_files_shown_are_what_clients_read() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"```json\n(\{\n.*?\n\})\n```", page, re.S)
    connection, pair = (
        msgspec.json.decode(text, type=kind) for text, kind in zip(shown, (Connection, KeyPair), strict=True)
    )
    assert isinstance(connection, Connection)
    assert msgspec.to_builtins(connection) == msgspec.json.decode(shown[0])
    assert msgspec.to_builtins(pair) == msgspec.json.decode(shown[1])


def test_the_limits_told_are_those_in_force() -> None:
    page = PAGE.read_text(encoding="utf-8")
    limits = page[page.index("## Limits") : page.index("## Over a restart")]
    for limit in (
        *MAX_QUEUED.values(),
        MAX_RING_EVENTS,
        SEND_HIGH_WATER,
        RECEIVE_HIGH_WATER,
        REPLY_HIGH_WATER,
        MAX_MAILBOX_COMMANDS,
        MAX_REMEMBERED,
        int(REMEMBERED_SECONDS),
        MAX_ENDED,
        rate_limiter.MAX_CONNECTIONS,
        int(REQUESTS_PER_SECOND),
        int(BURST_REFUSALS),
    ):
        assert re.search(rf"(?<![\d,]){limit:,}(?![\d,]*\d)", limits), limit
    sizes = {
        MAX_REQUEST_BYTES: "request | 1 MiB",
        MAX_INBOUND_BYTES: "daemon | 4 MiB",
        MAX_WAITING_BYTES: "not read | 8 MiB",
        MAX_RING_BYTES: "and 32 MiB",
        journal.MAX_WAITING_BYTES: "| 16 MiB wait",
    }
    for size, words in sizes.items():
        assert words in limits
        assert f" {size // 2**20} MiB" in words
