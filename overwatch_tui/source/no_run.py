"""No run: what is behind the list of runs until one is opened."""

from __future__ import annotations

import time
from typing import Any

from esper_overwatch.protocol.client.items import Item
from esper_overwatch.protocol.errors import EsperError

from .link_status import LinkStatus


class NoFeed:
    """A feed of nothing; see `feed.Feed`."""

    run_id: str | None = None
    boot: str | None = None
    is_caught_up = True

    def __init__(self) -> None:
        self.thresholds: dict[str, dict[str, Any]] = {}

    def drain(self) -> list[Item]:
        return []

    def now(self) -> int:
        return time.time_ns() // 1000

    def update_link(self, link: LinkStatus) -> None:
        link.state, link.problem = "searching", "no run is open; R lists them"

    def request(self, method: str, params: dict[str, Any]) -> str:
        raise EsperError(f"no run is open: {method} {params}")

    def close(self) -> None:
        """Nothing to release."""
