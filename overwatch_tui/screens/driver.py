"""Textual's driver, on a terminal that shows the first frame already."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver

from overwatch_tui.first_frame import ALTERNATE_SCREEN, FirstFrame


def driver_after(frame: FirstFrame) -> type[LinuxDriver]:
    """A driver that takes the alternate screen over: entering it a second time would blank it."""

    class TakingDriver(LinuxDriver):
        def write(self, data: str) -> None:
            if data == ALTERNATE_SCREEN and frame.is_shown:
                frame.hand_over()
            else:
                super().write(data)

    return TakingDriver
