"""Copies from device to host: many columns packed into one tensor, at most two of them per epoch.

What the host waits for travels together, as bytes: integers, booleans and floats arrive exactly as they were.
What it need not wait for travels on a stream of its own, into pinned memory, and is read when an event says
that it has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.trainer.compute.device import pinned_memory

HostFrame = dict[str, NDArray[Any]]
"""Columns by name, on the host; views of one buffer of their own."""
NUM_SLOTS = 2
"""Pinned buffers of a transfer: what the host waits for, and what may arrive late."""

# Widest elements first, so that every column begins at a multiple of its own width.
_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.int32: np.dtype(np.int32),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}


@dataclass(frozen=True)
class _Column:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass
class _Slot:
    """Pinned memory of one shipment at a time."""

    memory: Tensor
    shipment: Shipment | None = None


class Shipment:
    """Columns on their way to the host.

    Args:
        source: the same bytes on their device, kept until they have arrived: told by `record_stream`, the
            allocator would not take them back while a capture is under way, nor after one that failed.
        landing: where they are packed as bytes, on the host.
        arrived: when they are there; None = they are.
    """

    def __init__(
        self, columns: list[_Column], source: Tensor, landing: Tensor, arrived: torch.cuda.Event | None
    ) -> None:
        self.columns = columns
        self._source: Tensor | None = source
        self._landing, self._arrived = landing, arrived
        self._bytes: Tensor | None = landing if arrived is None else None

    def has_arrived(self) -> bool:
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until it has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def take(self) -> Tensor:
        """Take what has arrived into memory of its own: the pinned memory is free from then on."""
        if self._bytes is None:
            self._bytes = self._landing.clone()
        self._source = None
        return self._bytes

    @property
    def is_taken(self) -> bool:
        """True if the pinned memory is free."""
        return self._bytes is not None


class Transfer:
    """Packs named tensors of any shape, copies once, unpacks.

    Attributes:
        count: times that the host has waited for the device.
        bytes: bytes moved so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._slots: list[_Slot] = []
        self._side: torch.cuda.Stream | None = None

    def __call__(self, columns: Mapping[str, Tensor]) -> HostFrame:
        """Copy all columns to the host, and wait for them.

        Args:
            columns: tensors on one device, of float64/32, int64/32, uint8 or bool.

        Returns:
            The same names and shapes as numpy arrays; later changes of the tensors do not reach them.
        """
        return self.wait_for(self.send(columns))

    def wait_for(self, shipment: Shipment) -> HostFrame:
        """Wait for the newest shipment."""
        shipment.wait()
        self.count += 1
        return self._unpack(shipment)

    def receive(self, shipment: Shipment) -> HostFrame:
        """Unpack an older shipment; waits only where it has not arrived."""
        return self._unpack(shipment) if shipment.has_arrived() else self.wait_for(shipment)

    def send(self, columns: Mapping[str, Tensor], *, aside: bool = False) -> Shipment:
        """Begin to copy all columns, see `__call__`.

        Args:
            aside: beside what is issued next, so that nothing but `receive` waits for it.
        """
        by_dtype: dict[torch.dtype, list[str]] = {dtype: [] for dtype in _NUMPY}
        for name, tensor in columns.items():
            by_dtype[tensor.dtype].append(name)
        groups = [
            torch.cat([columns[name].detach().reshape(-1) for name in names]).view(torch.uint8)
            for names in by_dtype.values()
            if names
        ]
        packed = torch.cat(groups)
        self.bytes += len(packed)
        order = [name for names in by_dtype.values() for name in names]
        rows = [_Column(name, tuple(columns[name].shape), columns[name].dtype) for name in order]
        if packed.device.type != "cuda":
            return Shipment(rows, packed, packed, None)
        return self._copy(rows, packed, aside=aside)

    def _copy(self, rows: list[_Column], packed: Tensor, *, aside: bool) -> Shipment:
        """Copy from a GPU through pinned memory that stays; `aside` on a stream of its own."""
        here = stream = torch.cuda.current_stream(packed.device)
        if aside:
            if self._side is None:
                self._side = torch.cuda.Stream(packed.device)  # type: ignore[no-untyped-call]
            stream = self._side
            stream.wait_stream(here)
        slot = self._free_slot(len(packed))
        landing = slot.memory[: len(packed)]
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            landing.copy_(packed, non_blocking=True)
            arrived.record(stream)
        slot.shipment = Shipment(rows, packed, landing, arrived)
        return slot.shipment

    def _free_slot(self, size: int) -> _Slot:
        """The next slot of the ring; what it holds is taken first."""
        if len(self._slots) < NUM_SLOTS:
            self._slots.append(_Slot(pinned_memory(size)))
            return self._slots[-1]
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.shipment is not None and not slot.shipment.is_taken:
            slot.shipment.wait()
            slot.shipment.take()
        if len(slot.memory) < size:
            slot.memory = pinned_memory(size)
        return slot

    def _unpack(self, shipment: Shipment) -> HostFrame:
        buffer = shipment.take().numpy()
        frame: HostFrame = {}
        at = 0
        for column in shipment.columns:
            values: NDArray[Any] = buffer[at : at + column.bytes].view(_NUMPY[column.dtype])
            frame[column.name] = values.reshape(column.shape)
            at += column.bytes
        return frame
