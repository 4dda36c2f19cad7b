"""Saves checkpoints of a run and reports each, or its failure, as an event."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable

from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.messages.events import CheckpointFailed, CheckpointSaved
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.checkpoint import Checkpoints, SavedCheckpoint

from .run_control import RunControl

logger = logging.getLogger(__name__)


class CheckpointSaver:
    """Saves at a boundary between two epochs.

    Args:
        run: what is saved.
        checkpoints: where they are kept.
        emitter: takes the events.
        flush: waits, for a moment at most, until the journal has what was emitted. A checkpoint is not ahead
            of the journal: what it holds is not trained again, and would be missing there after kill -9.
        displacement: what became of the run's folder, where it is not in its place. What is there then may be
            another run's, and gets no checkpoint.

    Attributes:
        error: why the newest attempt failed; None where it did not.
        num_bytes: of the newest checkpoint; 0 before the first of this boot.
    """

    def __init__(
        self,
        run: RunControl,
        checkpoints: Checkpoints,
        emitter: Emitter,
        flush: Callable[[], bool],
        displacement: Callable[[], str | None],
    ) -> None:
        self.checkpoints = checkpoints
        self.error: str | None = None
        self.num_bytes = 0
        self._run = run
        self._emitter = emitter
        self._flush = flush
        self._displacement = displacement

    def save(
        self, reason: str, *, tag: str = "", command: str | None = None, best: bool = False
    ) -> SavedCheckpoint:
        """Write a checkpoint.

        Args:
            reason: for the event.
            tag: part of the file's name.
            command: id of the command that asked for it.
            best: also keep it as `best.pt`.

        Raises:
            OSError: the disk or the device refused; reported by `checkpoint.failed`, older checkpoints are
                intact.
        """
        begin = time.perf_counter()
        in_episode = self._run.epoch or None
        self._flush()
        try:
            displacement = self._displacement()
            if displacement is not None:
                raise OSError(errno.ENOENT, displacement)
            saved = self.checkpoints.save(
                self._run.state_dict(),
                round=self._run.round,
                epoch=in_episode,
                tag=tag,
                best=best,
                accuracy=self._run.accuracy_mean,
            )
        except (OSError, RuntimeError) as error:  # torch raises the latter, as for a GPU that has failed
            reason_given = error.strerror if isinstance(error, OSError) else None
            text = self.error = reason_given or first_line(error)
            folder = str(self.checkpoints.folder)
            self._emitter.emit(CheckpointFailed(path=folder, error=text, reason=reason, command=command))
            logger.error("checkpoint (%s) failed: %s; the ones before it are intact", reason, text)
            if isinstance(error, OSError):
                raise
            raise OSError(errno.EIO, text) from error
        self.error = None
        self.num_bytes = saved.bytes
        self._emitter.emit(
            CheckpointSaved(
                path=str(saved.path),
                bytes=saved.bytes,
                seconds=time.perf_counter() - begin,
                reason=reason,
                command=command,
            )
        )
        return saved

    def try_save(self, reason: str, *, best: bool = False) -> None:
        """Like `save`, for checkpoints that no command waits for: after a failure the run goes on."""
        with contextlib.suppress(OSError):
            self.save(reason, best=best)
