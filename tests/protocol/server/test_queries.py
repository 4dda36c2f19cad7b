"""Queries hang from the table of methods."""

from __future__ import annotations

from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.server.server import Server
from tests.protocol.raw import Raw
from tests.protocol.values import NEEDED


def test_every_query_is_answered(server: Server) -> None:
    with Raw() as raw:
        for method in METHODS.values():
            if method.socket == "qry":
                reply = raw.ask("qry", method.name, params=NEEDED.get(method.name, {}))[0]
                kind = reply.get("error", {}).get("data", {}).get("kind")
                assert kind in (None, "not_found", "range_gone"), reply
