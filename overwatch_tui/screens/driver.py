"""Textual's driver, on a terminal that shows the first frame already, and what it reads of keys."""

from __future__ import annotations

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.drivers.linux_driver import LinuxDriver

from esper_overwatch.overwatch_tui.first_frame import ALTERNATE_SCREEN, FirstFrame


def read_escape_and_digit() -> None:
    """Have Esc and a digit at once read as Alt and the digit, as with letters, not as a sign of macOS.

    Textual does so for one terminal of macOS; over ssh and in tmux it is Esc, and a view's key soon after it.
    """
    for sequence, character in list(ANSI_SEQUENCES_KEYS.items()):
        if len(sequence) == 2 and isinstance(character, str) and character not in sequence:
            del ANSI_SEQUENCES_KEYS[sequence]  # type: ignore[attr-defined]


def driver_after(frame: FirstFrame) -> type[LinuxDriver]:
    """A driver that takes the alternate screen over: entering it a second time would blank it."""

    class TakingDriver(LinuxDriver):
        def write(self, data: str) -> None:
            if data == ALTERNATE_SCREEN and frame.is_shown:
                frame.hand_over()
            else:
                super().write(data)

    return TakingDriver
