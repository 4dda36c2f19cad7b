"""The durable record of a run's alerts, `alerts.jsonl` in its folder: what was raised, and what was sent.

A line for each alert that is to be sent, written before the journal has what raised it, and a line for each
delivery that is over. What has no such line when a boot begins is sent then, under the same id.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from esper_overwatch.protocol.storage.folders import open_private, open_regular, replace_file

logger = logging.getLogger(__name__)

RECORD_FILE = "alerts.jsonl"
MAX_LINES, KEPT_ALERTS = 10_000, 1_000
"""Lines from which on the file is shortened at a start, and how many of the newest alerts then stay."""


class RecordLine(Struct, frozen=True, omit_defaults=True):
    """One line."""

    id: str
    deliveries: tuple[str, ...] = ()
    """Of an alert that was raised: what is to be sent."""
    message: dict[str, Any] = {}
    """Of the same: what is sent."""
    over: str = ""
    """The delivery that is over, sent or given up."""


class AlertRecord:
    """The file, to append to; each line is one write, so that any thread may.

    Raises:
        OSError: it cannot be read or opened.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD_FILE
        self._raised: dict[str, RecordLine] = {}
        """By id; `deliveries` are those that are not over."""
        lines = self._read()
        for line in lines:
            self._take(line)
        if len(lines) > MAX_LINES:
            kept = [*self.waiting, *list(self._raised.values())[-KEPT_ALERTS:]]
            self._raised = {line.id: line for line in kept}
            replace_file(self._path, b"".join(_encode(line) + b"\n" for line in self._raised.values()))
        self._file = open(self._path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        self._file.write(b"\n" * bool(lines))  # the last one may have been cut off

    @property
    def waiting(self) -> list[RecordLine]:
        """Alerts of which a delivery is not over."""
        return [line for line in self._raised.values() if line.deliveries]

    def add(self, id_: str, deliveries: tuple[str, ...], message: dict[str, Any]) -> bool:
        """Record an alert that is to be sent; False where it is known already, from whichever boot."""
        if id_ in self._raised:
            return False
        self._append(RecordLine(id=id_, deliveries=deliveries, message=message))
        return True

    def finish(self, id_: str, delivery: str) -> None:
        """Record that a delivery is over, on the disk when this returns."""
        self._append(RecordLine(id=id_, over=delivery))
        self.sync()

    def sync(self) -> None:
        """Bring the file onto the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            logger.warning("%s: %s", self._path, error.strerror)

    def _append(self, line: RecordLine) -> None:
        self._take(line)
        try:
            self._file.write(_encode(line) + b"\n")
        except OSError as error:
            logger.warning(
                "%s: %s: after a crash an alert may be lost or repeated", self._path, error.strerror
            )

    def _take(self, line: RecordLine) -> None:
        if not line.over:
            self._raised[line.id] = line
        elif (raised := self._raised.get(line.id)) is not None:
            left = tuple(name for name in raised.deliveries if name != line.over)
            self._raised[line.id] = replace(raised, deliveries=left, message=raised.message if left else {})

    def _read(self) -> list[RecordLine]:
        try:
            with open_regular(self._path) as file:
                texts = file.read().splitlines()
        except FileNotFoundError:
            return []
        lines = []
        for text in filter(None, texts):
            try:
                lines.append(_decode(text))
            except (msgspec.DecodeError, UnicodeDecodeError):
                logger.warning("%s: a line is damaged and counts as absent", self._path)
        return lines


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(RecordLine).decode
