"""Saves checkpoints of a run and reports each, or its failure, as an event.

The loop waits while its state is copied; a thread waits for the journal, and writes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.messages.events import CheckpointFailed, CheckpointSaved, Context
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.checkpoint import Checkpoints, SavedCheckpoint, snapshot

from .run_control import RunControl

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10.0
"""How long a checkpoint waits for the journal; behind a disk that takes longer, or refuses, it goes on."""


@dataclass(frozen=True)
class _Job:
    """A checkpoint to be written."""

    reason: str
    tag: str
    command: str | None
    best: bool
    round: int
    epoch: int | None
    accuracy: float | None
    context: Context
    """Where the run was, which may be further when the checkpoint is told of."""
    begun: float = field(default_factory=time.perf_counter)


class CheckpointSaver:
    """Saves at a boundary between two epochs.

    Args:
        run: what is saved.
        checkpoints: where they are kept.
        emitter: takes the events.
        flush: waits, for so many seconds at most, until what was emitted is on the disk. A checkpoint is not
            ahead of the journal: what it holds is not trained again, and would be missing there after a power
            cut.
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
        flush: Callable[[float], bool],
        displacement: Callable[[], str | None],
    ) -> None:
        self.checkpoints = checkpoints
        self.error: str | None = None
        self.num_bytes = 0
        self._run = run
        self._emitter = emitter
        self._flush = flush
        self._displacement = displacement
        self._writing: threading.Thread | None = None

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
        self.wait()
        job = self._job(reason, tag, command, best=best)
        with self._reported(job):
            return self._write(job, self._run.state_dict())

    def save_aside(self, reason: str, *, best: bool = False) -> None:
        """Like `save`, but a thread writes, and after a failure the run goes on. Waits for the one before."""
        self.wait()
        job = self._job(reason, best=best)
        with contextlib.suppress(OSError), self._reported(job):
            state = snapshot(self._run.state_dict())
            self._writing = threading.Thread(target=self._try_write, args=(job, state), name="checkpoint")
            self._writing.start()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written, if any, is on the disk or has failed."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _job(self, reason: str, tag: str = "", command: str | None = None, *, best: bool) -> _Job:
        run = self._run
        epoch, context = run.epoch or None, self._emitter.context
        return _Job(reason, tag, command, best, run.round, epoch, run.accuracy_mean, context)

    def _try_write(self, job: _Job, state: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), self._reported(job):
            self._write(job, state)

    def _write(self, job: _Job, state: dict[str, Any]) -> SavedCheckpoint:
        self._flush(FLUSH_SECONDS)
        displacement = self._displacement()
        if displacement is not None:
            raise OSError(errno.ENOENT, displacement)
        saved = self.checkpoints.save(
            state, round=job.round, epoch=job.epoch, tag=job.tag, best=job.best, accuracy=job.accuracy
        )
        self.error = None
        self.num_bytes = saved.bytes
        self._emitter.emit(
            CheckpointSaved(
                path=str(saved.path),
                bytes=saved.bytes,
                seconds=time.perf_counter() - job.begun,
                reason=job.reason,
                command=job.command,
            ),
            context=job.context,
        )
        return saved

    @contextlib.contextmanager
    def _reported(self, job: _Job) -> Iterator[None]:
        """Report what fails in the body by an event, and raise it as an OSError."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch raises the latter, as for a GPU that has failed
            reason_given = error.strerror if isinstance(error, OSError) else None
            text = self.error = reason_given or first_line(error)
            folder = str(self.checkpoints.folder)
            failure = CheckpointFailed(path=folder, error=text, reason=job.reason, command=job.command)
            self._emitter.emit(failure, context=job.context)
            logger.error("checkpoint (%s) failed: %s; the ones before it are intact", job.reason, text)
            if isinstance(error, OSError):
                raise
            raise OSError(errno.EIO, text) from error
