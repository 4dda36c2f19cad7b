"""The one copy from device to host per epoch: many columns packed into one tensor.

Every transfer from a GPU waits for it, so all that the host wants to know of an epoch travels together, as
bytes: integers, booleans and floats arrive exactly as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HostFrame = dict[str, NDArray[Any]]
"""Columns by name, on the host; views of one buffer of their own."""

# Widest elements first, so that every column begins at a multiple of its own width.
_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.int32: np.dtype(np.int32),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}


class Transfer:
    """Packs named tensors of any shape, copies once, unpacks.

    Attributes:
        count: transfers made so far.
        bytes: bytes moved so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._pinned: Tensor | None = None

    def __call__(self, columns: Mapping[str, Tensor]) -> HostFrame:
        """Copy all columns to the host.

        Args:
            columns: tensors on one device, of float64/32, int64/32, uint8 or bool.

        Returns:
            The same names and shapes as numpy arrays; later changes of the tensors do not reach them.
        """
        by_dtype: dict[torch.dtype, list[str]] = {dtype: [] for dtype in _NUMPY}
        for name, tensor in columns.items():
            by_dtype[tensor.dtype].append(name)
        groups = [
            torch.cat([columns[name].detach().reshape(-1) for name in names]).view(torch.uint8)
            for names in by_dtype.values()
            if names
        ]
        buffer = self._fetched(torch.cat(groups)).numpy()
        self.count += 1
        self.bytes += buffer.nbytes
        frame: HostFrame = {}
        at = 0
        for dtype, names in by_dtype.items():
            for name in names:
                tensor = columns[name]
                end = at + tensor.numel() * tensor.element_size()
                column: NDArray[Any] = buffer[at:end].view(_NUMPY[dtype])
                frame[name] = column.reshape(tuple(tensor.shape))
                at = end
        return frame

    def _fetched(self, packed: Tensor) -> Tensor:
        """The bytes on the host, in memory of their own.

        From a GPU they come through pinned memory that stays, and the host waits for that copy alone.
        """
        if packed.device.type != "cuda":
            return packed.to("cpu")
        if self._pinned is None or len(self._pinned) < len(packed):
            self._pinned = torch.empty(len(packed), dtype=torch.uint8, pin_memory=True)
        landing = self._pinned[: len(packed)]
        landing.copy_(packed, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(packed.device))
        arrived.synchronize()
        return landing.clone()
