"""The queue between the loop and the I/O thread, which does all that `log` leaves to be done."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, hypot, isfinite, sqrt
from pathlib import Path
from time import time_ns
from typing import Any

from msgspec import Struct

from esper_overwatch.protocol.messages.events import (
    Artifact,
    Histogram,
    LoggedTable,
    LoggedText,
    LogLine,
    Scalars,
)
from esper_overwatch.protocol.server.emitter import MAX_QUEUED, Emitted, Emitter

from .device_reader import DeviceReader, is_on_device
from .pictures import PictureFolder, preview_of_file
from .summary import RunSummary
from .tables import MAX_CELL_CHARACTERS
from .values import MAX_ARRAY_VALUES, ArraySample, SortedValues, kind_of

logger = logging.getLogger(__name__)

MAX_QUEUED_NUMBERS = MAX_QUEUED["metric"]
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Limit of arrays, texts and large dicts that wait for the I/O thread; more is refused and counted."""
MAX_WAITING_PICTURE_BYTES = 128 * 1024 * 1024
"""The same of pictures, whose disk may hang while the I/O thread goes on."""
BYTES_PER_NUMBER = 128
"""A logged number in memory, its share of the dict included."""
FILE_BYTES = 8192
"""What a file of an image counts as while its preview is waited for."""


class LoggedNumbers(Struct, frozen=True, gc=False):
    """The numbers of one quick `log`, as they wait; cheaper to make than the event that they become."""

    ns: int
    step: int
    values: dict[str, Any]


@dataclass
class _LargeMetric:
    """A waiting metric that takes much memory: numbers, or an array that becomes a histogram."""

    num_bytes: int
    step: int
    name: str
    value: Scalars | ArraySample
    waits: bool
    """To read it, a device is waited for."""


@dataclass
class _LargeText:
    num_bytes: int
    step: int
    text: LoggedText | LoggedTable


@dataclass
class _Picture:
    """A waiting picture: an image of Pillow that is to be written, or a file that has no preview so far."""

    num_bytes: int
    step: int
    name: str
    image: Any


MAX_BINS = 64


def make_histogram(step: int, name: str, sample: ArraySample) -> Histogram:
    """Count the finite values in bins of equal width.

    Args:
        step: when it was logged.
        name: of the value.
        sample: its values; an array's `tolist` is called here, which waits for its device.
    """
    values = sample.values if isinstance(sample.values, list) else sample.values.tolist()
    finite = [float(x) for x in values if isfinite(x)]
    made = Histogram(
        step=step,
        name=name,
        counts=[],
        size=sample.size,
        sampled=len(values),
        nonfinite=len(values) - len(finite),
    )
    if finite:
        count = len(finite)
        made.min, made.max = min(finite), max(finite)
        mean = made.mean = fsum([x / count for x in finite])
        root = sqrt(count)
        made.std = 2 * hypot(*[(x / 2 - mean / 2) / root for x in finite])  # squares may be beyond a float
        made.counts = _count(finite, made.min, made.max)
    return made


def _count(values: Sequence[float], low: float, high: float) -> list[int]:
    """Values per bin from `low` to `high`; one bin where these are equal."""
    half = high / 2 - low / 2  # the whole span may be beyond the largest float
    if half == 0.0:
        return [len(values)]
    counts = [0] * MAX_BINS
    for x in values:
        counts[min(MAX_BINS - 1, int((x / 2 - low / 2) / half * MAX_BINS))] += 1
    return counts


class ValueQueue(Emitter):
    """An emitter whose I/O side makes histograms of arrays and keeps the summary.

    Args:
        summary: of the run.
        on_step: called with the newest step whenever something logged has been drained.
        folder: of pictures, which is made for the first.
    """

    def __init__(self, summary: RunSummary, on_step: Callable[[int], None], folder: Path) -> None:
        super().__init__()
        self._queue_by_class[_LargeMetric] = self._queue_by_class[Scalars]
        self._queue_by_class[_LargeText] = self._queue_by_class[LoggedText]
        self._queue_by_class[_Picture] = self._queue_by_class[Scalars]
        self.numbers: deque[Any] = self._queues["metric"].events
        """Queue to which `log` itself appends `LoggedNumbers`, up to `MAX_QUEUED_NUMBERS`."""
        self._summary = summary
        self._on_step = on_step
        self._has_warned = False
        self._num_completed = self._num_told = 0
        self._waiting_bytes = {False: 0, True: 0}
        """By whether they are of pictures."""
        self._bytes_lock = threading.RLock()  # a signal handler may log, too
        self._devices = DeviceReader[Emitted](self._read)
        """Reads values of devices, and emits them when it has."""
        self._painter = DeviceReader[Emitted](self._read, "esper-pictures")
        self._pictures = PictureFolder(folder)

    def emit_values(self, step: int, found: SortedValues) -> None:
        """Queue what one `log` has beside plain numbers, and these if there are any."""
        if found.numbers:
            self._emit_numbers(step, found.numbers)
        for name, sample in found.arrays.items():
            self._emit_array(step, name, sample)
        for name, text in found.texts.items():
            made = LoggedText(step=step, name=name, text=text)
            self._emit_large(_LargeText(4 * len(text), step, made))
        for name, (columns, rows, size) in found.tables.items():
            num_bytes = 4 * MAX_CELL_CHARACTERS * len(columns) * (len(rows) + 1)
            table = LoggedTable(step=step, name=name, columns=columns, rows=rows, size=size)
            self._emit_large(_LargeText(num_bytes, step, table))
        for name, image in found.pictures.items():
            self._emit_large(_Picture(4 * image.width * image.height, step, name, image))
        for name, (path, num_bytes) in found.files.items():
            self.emit_file(
                Artifact(step=step, name=name, path=str(path), kind=kind_of(path), bytes=num_bytes)
            )

    def emit_file(self, file: Artifact) -> None:
        """Queue a file; one of an image waits for its preview, where there is room to wait."""
        picture = _Picture(FILE_BYTES, file.step, file.name, file)
        if file.kind != "image" or not self._emit_large(picture, is_counted=False):
            self.emit(file)

    def wait_read(self, timeout: float) -> int:
        """Wait until values of devices and pictures are read; how many are not, after so many seconds."""
        end = time.monotonic() + timeout
        readers = (self._devices, self._painter)
        return sum(reader.wait(max(0.0, end - time.monotonic())) for reader in readers)

    def _emit_numbers(self, step: int, numbers: dict[str, float]) -> None:
        """Queue the numbers of one `log`, however many."""
        values = Scalars(step=step, values=numbers)
        waits = any(map(is_on_device, numbers.values()))
        self._emit_large(_LargeMetric(BYTES_PER_NUMBER * len(numbers), step, "", values, waits))

    def _emit_array(self, step: int, name: str, sample: ArraySample) -> None:
        """Queue an array's sample, to become a histogram."""
        num_bytes = BYTES_PER_NUMBER // 4 * min(sample.size, MAX_ARRAY_VALUES)
        self._emit_large(_LargeMetric(num_bytes, step, name, sample, is_on_device(sample.values)))

    def _emit_large(self, item: _LargeMetric | _LargeText | _Picture, *, is_counted: bool = True) -> bool:
        """Queue what takes memory; False where there is no room, which is counted as a loss if it is one."""
        queue, is_picture = self._queue_by_class[type(item)], isinstance(item, _Picture)
        limit = MAX_WAITING_PICTURE_BYTES if is_picture else MAX_WAITING_BYTES
        with self._bytes_lock:
            waiting = self._waiting_bytes[is_picture]
            if (
                len(queue.events) >= queue.bound
                or self._silent
                or (waiting and waiting + item.num_bytes > limit)
            ):
                if is_counted:
                    self._refuse(queue.stream)
                return False
            self._waiting_bytes[is_picture] += item.num_bytes
            emitted = Emitted(time_ns(), item, None, self._context)
            if is_picture:
                self._painter.put(emitted)
            elif isinstance(item, _LargeMetric) and item.waits:
                self._devices.put(emitted)
            else:
                queue.events.append(emitted)
        return True

    def _read(self, item: Emitted) -> None:
        """Emit what a device has given, or a picture; the I/O thread never waits for them."""
        done = self._complete(item)
        self._queue_by_class[type(done.event)].events.append(done)

    def drain(self, limit: int) -> list[Emitted]:
        """Take what waits: numbers as JSON has them, histograms for arrays; now and then the summary."""
        events = [self._complete(item) for item in super().drain(limit)]
        if self._num_completed != self._num_told:
            self._num_told = self._num_completed
            self._on_step(self._summary.step)
        summary = self._summary.take_due(time.monotonic())
        if summary is not None:
            events.append(Emitted(time_ns(), summary, None, self._context))
        return events

    def _complete(self, item: Emitted | LoggedNumbers) -> Emitted:
        """The event to be sent for what was queued; a failure becomes a line of the run's log."""
        event = item if isinstance(item, LoggedNumbers) else item.event
        if not isinstance(event, LoggedNumbers | _LargeMetric | _LargeText | _Picture):
            assert isinstance(item, Emitted)
            return item
        made: object
        self._num_completed += 1
        try:
            made = self._unpack(event, item.ns)
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("a logged value was left out; the run's log names each", exc_info=True)
            name = getattr(event, "name", "") or "a value"
            message = f"{name} logged at step {event.step} was left out: {error}"
            made = LogLine(level="ERROR", logger=__name__, message=message)
        return Emitted(item.ns, made, None, self._context)

    def _unpack(
        self, item: LoggedNumbers | _LargeMetric | _LargeText | _Picture, ns: int
    ) -> Scalars | Histogram | LoggedText | LoggedTable | Artifact:
        if isinstance(item, LoggedNumbers):
            numbers = Scalars(step=item.step, values=item.values)
            self._summary.fold(numbers)
            return numbers
        with self._bytes_lock:
            self._waiting_bytes[isinstance(item, _Picture)] -= item.num_bytes
        if isinstance(item, _LargeText):
            return item.text
        if isinstance(item, _Picture):
            if not isinstance(item.image, Artifact):
                return self._pictures.save(item.image, item.name, item.step, ns)
            item.image.preview = preview_of_file(Path(item.image.path))
            return item.image
        if isinstance(item.value, ArraySample):
            return make_histogram(item.step, item.name, item.value)
        self._summary.fold(item.value)
        return item.value
