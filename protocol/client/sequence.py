"""A stream put back in order: what can be delivered now, and what is missing. No socket in here."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.protocol.codec.json_lines import LINE_PREFIX
from esper_overwatch.protocol.errors import WireError


class Sequencer:
    """Takes lines by number, in any order and with repeats; gives each once, in order.

    Args:
        last: the number after which delivery begins.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        """The newest number delivered."""
        self.known = last
        """The newest number that is known to exist."""
        self._held: dict[int, bytes] = {}

    def push(self, first: int, lines: Sequence[bytes]) -> list[bytes]:
        """Take the lines `first`, `first + 1`, ...; returns what can be delivered now, without a hole."""
        self.note_latest(first + len(lines) - 1)
        if first > self.last + 1:
            self._held.update(zip(range(first, first + len(lines)), lines, strict=True))
            return []
        ready = list(lines[self.last + 1 - first :])
        self.last += len(ready)
        while self._held and (line := self._held.pop(self.last + 1, None)) is not None:
            ready.append(line)
            self.last += 1
        if self._held and ready:
            self._held = {seq: line for seq, line in self._held.items() if seq > self.last}
        return ready

    def note_latest(self, last: int) -> None:
        """Learn that numbers up to `last` exist."""
        self.known = max(self.known, last)

    @property
    def behind(self) -> int:
        """Count of existing numbers that are not delivered yet."""
        return self.known - self.last

    @property
    def missing(self) -> tuple[int, int] | None:
        """The first hole, as (first, last), or None."""
        if not self.behind:
            return None
        return self.last + 1, min(self._held) - 1 if self._held else self.known


class NewestLines:
    """A stream whose holes are not filled: gives a line where it is newer than all before it."""

    def __init__(self) -> None:
        self.last = 0
        """The newest number delivered, or that a snapshot has brought."""

    def push(self, lines: Sequence[bytes]) -> list[bytes]:
        """Take lines by number; returns those that are news.

        Raises:
            WireError: a line is not an event; none of them is taken.
        """
        newer = []
        last = self.last
        for line in lines:
            head = LINE_PREFIX.match(line)
            if head is None:
                raise WireError(f"not an event in a view: {line[:80]!r}")
            if (seq := int(head[1])) > last:
                newer.append(line)
                last = seq
        self.last = last
        return newer
