"""Report what a damaged journal has lost: unreadable places and missing numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import WireError

MAX_PLACES = 20
"""Named; the others are counted."""


class DamageReport:
    """Watches a journal being read."""

    def __init__(self) -> None:
        self.num_places = 0
        """Lines that are not events, and frames that cannot be read."""
        self.places: list[str] = []
        """The first of them, in words."""
        self._next: dict[str, int] = {}
        """Per stream the number that is expected; 1 where it is missing."""
        self._missing: list[tuple[str, int, int]] = []

    def expect(self, first: Mapping[str, int]) -> None:
        """Say with which number each stream is to begin, where that is not 1."""
        self._next.update(first)

    def note(self, number: int, error: WireError) -> None:
        """A line or a frame cannot be read; see `on_bad` of `reader.read`."""
        self.add_places([str(error) if "after line" in str(error) else f"line {number}: {error}"], 1)

    def add_places(self, places: Sequence[str], count: int) -> None:
        """Count places that cannot be read; `places` describes the first of them."""
        self.num_places += count
        self.places += places[: MAX_PLACES - len(self.places)]

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        """Pass events through and note which numbers are missing."""
        for event in events:
            self.add_numbers(event.stream, event.seq, event.seq)
            yield event

    def add_numbers(self, stream: str, first: int, last: int) -> None:
        """The next events of a stream were read."""
        expected = self._next.get(stream, 1)
        if first > expected:
            self._missing.append((stream, expected, first - 1))
        self._next[stream] = last + 1

    @property
    def lines(self) -> list[str]:
        """The report's lines; none where only retention has taken numbers."""
        if not self.num_places:
            return []
        lines = [f"damaged: {place}" for place in self.places]
        if self.num_places > len(self.places):
            lines.append(f"damaged: {self.num_places - len(self.places)} more places")
        missing = [f"{stream} {first}..{last}" for stream, first, last in self._missing]
        shown = ", ".join(missing[:MAX_PLACES]) or "nothing between the events that are held"
        more = f" and {len(missing) - MAX_PLACES} more ranges" if len(missing) > MAX_PLACES else ""
        return [*lines, f"lost: {shown}{more}; what is whole was read"]
