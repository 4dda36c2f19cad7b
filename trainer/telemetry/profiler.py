"""torch.profiler over some epochs, by command or by configuration: a trace on disk and its summary.

A trace is in Chrome's format, and named as torch's plugin for TensorBoard wants it; an epoch is a step there.
A window of epochs is recorded from the beginning of an epoch on. It holds the PPO update if it runs across
the end of a round; a window asked for `with_update` waits until as many epochs are left in the round, and
ends behind the round's update. Writing happens at the boundary that ends the window; whatever goes wrong is
reported in `profiler.finished`, and the run goes on.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from torch.profiler import profile, record_function, supported_activities

from esper_overwatch.protocol.messages.events import ProfilerFinished, ProfilerStarted
from esper_overwatch.trainer.compute.torch_private import all_threads_profiler_config

from .trace import STEP_PREFIX, top_operators, utilisation

logger = logging.getLogger(__name__)

SUMMARY_LIMIT = 256 * 2**20
"""Bytes of a trace up to which its operators are summed up; reading it takes several times that memory."""


@dataclass
class _Window:
    """One recording that was asked for."""

    epochs: int
    with_update: bool
    command: str | None
    recorded: int = 0
    name: str = ""
    profile: profile | None = None
    step: record_function | None = None

    def next_step(self, *, last: bool = False) -> None:
        """End the step that is being recorded, and begin another."""
        if self.step is not None:
            self.step.__exit__(None, None, None)
            self.step = None
        if not last:
            self.step = record_function(f"{STEP_PREFIX}{self.recorded}")
            self.step.__enter__()  # type: ignore[no-untyped-call]


class Profiler:
    """Records one window at a time.

    Args:
        folder: where traces go; made when the first is written.
        emit: takes the `profiler.started` and `profiler.finished` events.
    """

    def __init__(self, folder: Path, emit: Callable[[ProfilerStarted | ProfilerFinished], None]) -> None:
        self._folder = folder
        self._emit = emit
        self._window: _Window | None = None

    @property
    def active(self) -> bool:
        """A window is recorded or waits to be."""
        return self._window is not None

    def start(self, epochs: int, *, command: str | None = None, with_update: bool = False) -> None:
        """Record the next `epochs` epochs; with `with_update` the last ones of a round and its update.

        Raises:
            ValueError: a window is being recorded already.
        """
        if self._window is not None:
            raise ValueError("the profiler is recording already; stop it first or wait")
        self._window = _Window(epochs=epochs, with_update=with_update, command=command)

    def stop(self) -> None:
        """End the window now and write what it holds; without one, nothing happens."""
        if self._window is None:
            return
        if self._window.profile is None:
            window, self._window = self._window, None
            self._finish(window, error="stopped before an epoch was recorded")
        else:
            self._end()

    def cancel(self, reason: str) -> None:
        """End the window now; what it holds is thrown away."""
        window, self._window = self._window, None
        if window is None:
            return
        if window.profile is not None:
            window.next_step(last=True)
            window.profile.stop()
        self._finish(window, error=reason)

    @property
    def recorded(self) -> int:
        """Epochs in the window so far."""
        return 0 if self._window is None else self._window.recorded

    def epoch_begin(self, round: int, epoch: int, epochs_left: int) -> None:
        """An epoch is about to run.

        Args:
            round: number of the round.
            epoch: epochs finished in it.
            epochs_left: epochs of the episode still to run, this one included.
        """
        window = self._window
        if window is None:
            return
        if window.profile is not None:
            window.next_step()
            return
        if window.with_update and epochs_left > window.epochs:
            return
        window.name = f"round-{round:06d}-epoch-{epoch:05d}"
        try:
            window.profile = _begin_recording()
        except RuntimeError as error:
            self._window = None
            self._finish(window, error=f"torch.profiler did not start: {error}")
            return
        window.next_step()
        self._emit(ProfilerStarted(epochs=window.epochs, command=window.command))

    def epoch_end(self) -> None:
        """An epoch has run."""
        window = self._window
        if window is None or window.profile is None:
            return
        window.recorded += 1
        if window.recorded >= window.epochs and not window.with_update:
            self._end()

    def round_end(self) -> None:
        """The PPO update has run."""
        if self._window is not None and self._window.profile is not None and self._window.with_update:
            self._end()

    def _end(self) -> None:
        window, self._window = self._window, None
        assert window is not None
        assert window.profile is not None
        summary: dict[str, Any] = {}
        try:
            window.next_step(last=True)
            window.profile.stop()
            path, size = self._write(window)
            if size <= SUMMARY_LIMIT:
                trace = orjson.loads(path.read_bytes())
                summary = {"top": top_operators(trace), **utilisation(trace)}
        except (OSError, RuntimeError, orjson.JSONDecodeError) as error:
            logger.exception("the trace of %s could not be written", window.name)
            self._finish(window, error=f"{self._folder}: {error}")
            return
        self._finish(window, path=path, size=size, summary=summary)

    def _write(self, window: _Window) -> tuple[Path, int]:
        """Export beside the target, then rename: a trace that exists is complete."""
        assert window.profile is not None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._folder / f"{window.name}.partial"
        try:
            window.profile.export_chrome_trace(str(partial))
            if not partial.exists():  # torch logs what the disk says, and goes on
                free = shutil.disk_usage(self._folder).free
                raise OSError(f"torch.profiler could not write its trace; {free} bytes of the disk are free")
            path = self._folder / f"{window.name}.{time.time_ns()}.pt.trace.json"
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path, path.stat().st_size

    def _finish(
        self,
        window: _Window,
        *,
        path: Path | None = None,
        size: int = 0,
        summary: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        self._emit(
            ProfilerFinished(
                path="" if path is None else str(path),
                bytes=size,
                epochs=window.recorded,
                command=window.command,
                error=error,
                **{"top": [], **(summary or {})},
            )
        )


def _begin_recording() -> profile:
    """Everything torch can see here: CPU with the workers of host groups, and CUDA, XPU or MPS."""
    recording = profile(
        activities=list(supported_activities()),  # type: ignore[no-untyped-call]
        experimental_config=all_threads_profiler_config(),
    )
    recording.start()
    return recording
