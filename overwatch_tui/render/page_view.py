"""Tables that lie behind a detail, such as its layers: which is open, and how each is sorted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PageView:
    """Changed by keys, read by panels."""

    name: str = ""
    """The panel that is open over the view; empty = none."""
    orders: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Per panel: the column that it is sorted by, and whether turned round."""

    def close(self) -> bool:
        """Back to what lies in front; False where no page is open."""
        was_open, self.name = bool(self.name), ""
        return was_open

    def order(self, panel: str) -> tuple[int, bool]:
        """(column, turned round) of a table."""
        return self.orders.get(panel, (0, False))

    def cycle(self, panel: str, count: int) -> int:
        """Sort by the next of `count` columns; returns its index."""
        self.orders[panel] = (self.order(panel)[0] + 1) % count, False
        return self.orders[panel][0]

    def turn(self, panel: str) -> None:
        """The other way round."""
        column, turned = self.order(panel)
        self.orders[panel] = column, not turned
