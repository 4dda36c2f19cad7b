"""The first frame: one line that is shown before Textual is imported.

Imports nothing that takes time.
"""

from __future__ import annotations

import os
import shutil
import sys
import termios
from types import TracebackType
from typing import Any

from esper_overwatch.protocol.codec.text import clean_cells

ALTERNATE_SCREEN = "\x1b[?1049h"
_LEAVE = "\x1b[?1049l\x1b[?25h"
_HIDE_CURSOR, _CLEAR = "\x1b[?25l", "\x1b[2J\x1b[H"
_DISABLED = b"\0"
_LFLAG, _CC = 3, 6
"""Indices into the list that termios.tcgetattr returns."""


class FirstFrame:
    """One line in the alternate screen, from entering until a driver takes it over, or until leaving.

    Keys that are typed meanwhile wait for the program and are not echoed; ctrl+c ends it. Does nothing where
    Textual's output is not a terminal, or where it is not wanted.
    """

    def __init__(self, text: str, *, is_wanted: bool = True) -> None:
        self._text = text
        self._output = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
        self._former: list[Any] | None = None
        self.is_shown = False
        self._is_wanted = is_wanted

    def __enter__(self) -> FirstFrame:
        if self._is_wanted and self._output >= 0 and os.isatty(self._output):
            width = shutil.get_terminal_size().columns or 80  # as Textual: COLUMNS, then the terminal
            line = clean_cells(f" esper  {self._text}")[:width]
            try:
                self._silence()
                self.is_shown = True
                self._write(f"{ALTERNATE_SCREEN}{_HIDE_CURSOR}{_CLEAR}{line}")
            except BaseException:  # ctrl+c can come as soon as the line is seen
                self.hand_over()
                self._write(_LEAVE)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal, unless it was taken over."""
        if self.is_shown:
            self.hand_over()
            self._write(_LEAVE)

    def hand_over(self) -> None:
        """Leave the alternate screen to somebody else; the terminal's modes are as they were."""
        self.is_shown = False
        if self._former is not None:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._former)  # type: ignore[union-attr]
            self._former = None

    def _silence(self) -> None:
        """Neither echo keys nor stop at ctrl+z, which would leave a shell in the alternate screen."""
        if sys.__stdin__ is None or not sys.__stdin__.isatty():
            return
        descriptor = sys.__stdin__.fileno()
        self._former = termios.tcgetattr(descriptor)
        modes = termios.tcgetattr(descriptor)
        modes[_LFLAG] &= ~termios.ECHO
        modes[_CC][termios.VSUSP] = _DISABLED
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)

    def _write(self, text: str) -> None:
        os.write(self._output, text.encode())
