"""Progress of a start that takes long: a line now and then, until the run is ready."""

from __future__ import annotations

import sys
import threading
import time

INTERVAL_SECONDS = 10.0


class StartProgress:
    """Prints a step that takes longer than an interval, to standard error; a context manager.

    Detached, too, that is the terminal of whoever started the run, until the run is ready.
    """

    def __init__(self) -> None:
        self._step: tuple[str, float] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name="esper-start", daemon=True)

    def begin(self, step: str) -> None:
        """The next step of the start; `step` begins with a verb in -ing."""
        self._step = step, time.monotonic()

    def close(self) -> None:
        """Print nothing from now on; a second call does nothing."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> StartProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _main(self) -> None:
        while not self._closed.wait(INTERVAL_SECONDS):
            if self._step is None:
                continue
            step, began = self._step
            seconds = time.monotonic() - began
            print(f"esper-daemon: {step}: {seconds:.0f} s so far", file=sys.stderr, flush=True)
