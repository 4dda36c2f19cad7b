"""Works the queue off: entries begin in their order, as many at once as there are places on devices."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.protocol.errors import DISK_EXIT, FINAL_EXITS, FolderError, NameTaken
from esper_overwatch.protocol.journal.reader import LastWords, last_words
from esper_overwatch.protocol.messages.events import RunStopped
from esper_overwatch.protocol.runs import RUNS_FOLDER
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.lock import Lock, LockHeld, holder_of
from esper_overwatch.trainer.config import load as settings

from .child import is_alive, last_line, start_child
from .entries import MAX_PAUSE_SECONDS, Entry, EntryQueue

LOOK_SECONDS = 0.5
RETRY_SECONDS, DISK_SECONDS = 5.0, MAX_PAUSE_SECONDS
"""Before an entry that ended unexpectedly goes on, and one to which the disk was full or read-only."""
MAX_FAILURES = 3
"""Unexpected ends in a row, without a round finished between two, that an entry is tried again after."""


@dataclass
class _Running:
    """An entry that runs; `child` is None where an earlier process has started it."""

    entry: Entry
    child: subprocess.Popen[bytes] | None
    rounds: int
    """Rounds that the run had begun before."""
    is_told: bool = False
    """It has been asked to end."""


class QueueRunner:
    """Begins entries, goes on with those that were interrupted, and writes how they end.

    Args:
        queue: of the home folder.
        places: a device for each entry that may run at once; None = what the entry itself says.
        say: prints a line.

    Attributes:
        failed: entries that have failed.
    """

    def __init__(self, queue: EntryQueue, places: Sequence[str | None], say: Callable[[str], None]) -> None:
        self._queue, self._places, self._say = queue, places, say
        self._running: list[_Running] = []
        self._is_interrupted = False
        self.failed = 0

    def interrupt(self) -> None:
        """For a signal handler: end what runs in order, and leave it in the queue to be gone on with.

        Raises:
            KeyboardInterrupt: for the second time; leave now, what runs goes on.
        """
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True

    def run(self, *, stays: bool) -> bool:
        """Work the queue off.

        Args:
            stays: wait for further entries when none is left.

        Returns:
            True when none is left; else it was interrupted.

        Raises:
            NameTaken: another process works this queue off.
            FolderError: its lock cannot be written.
        """
        try:
            lock = Lock(self._queue.lock_file)
        except LockHeld as held:
            raise NameTaken(f"the queue is worked off by pid {held.holder.pid} already") from None
        except OSError as error:
            raise FolderError(f"cannot lock {self._queue.lock_file}: {error.strerror}") from None
        try:
            self._adopt()
            while True:
                self._reap()
                if not self._is_interrupted:
                    self._begin()
                if not self._running and (self._is_interrupted or not (stays or self._is_anything_left())):
                    return not self._is_interrupted
                time.sleep(LOOK_SECONDS)
        finally:
            lock.release()

    def _is_anything_left(self) -> bool:
        return any(entry.ended is None for entry in self._queue.entries())

    def _adopt(self) -> None:
        """Take over what an earlier process of this kind has begun and not seen the end of."""
        for entry in self._queue.entries():
            if entry.state != "running":
                continue
            self._running.append(_Running(entry, None, self._rounds(entry)))
            if is_alive(self._queue.log(entry)):
                self._say(f"{_name(entry)}: runs already")
        self._queue.free_devices(self._places)

    def _begin(self) -> None:
        free = Counter(self._places) - Counter(each.entry.device for each in self._running)
        for device in free.elements():
            entry = self._queue.take(device)
            if entry is None:
                continue
            given = {} if device is None else {"ESPER_DEVICE": device}
            environ = {**_without_options(os.environ), **given, **entry.environment}
            words = self._last_words(entry)
            rounds = 0 if words is None else words.round
            try:
                child = start_child(entry.words, self._queue.log(entry), environ, Path(entry.folder))
            except OSError as error:
                self._fail(entry, None, f"cannot be started in {entry.folder}: {error.strerror}")
                continue
            self._queue.record_process(entry, child.pid, 0 if words is None else words.ts)
            self._running.append(_Running(entry, child, rounds))
            self._say(
                f"{_name(entry)}: {'goes on' if rounds else 'begins'}{f' on {device}' if device else ''}"
            )

    def _reap(self) -> None:
        wanted = {entry.number for entry in self._queue.entries() if entry.is_cancelled}
        for each in list(self._running):
            is_cancelled = each.entry.number in wanted
            code = None if each.child is None else each.child.poll()
            lives = is_alive(self._queue.log(each.entry)) if each.child is None else code is None
            if lives:
                if (is_cancelled or self._is_interrupted) and not each.is_told:
                    each.is_told = self._tell_to_end(each)
                continue
            self._running.remove(each)
            self._judge(each, code, is_cancelled=is_cancelled)

    def _tell_to_end(self, each: _Running) -> bool:
        """Ask it to end with a checkpoint; False where its process is not known yet."""
        if each.child is not None:
            each.child.send_signal(signal.SIGTERM)
            return True
        entry = each.entry
        holder = holder_of(self._queue.home / RUNS_FOLDER / entry.name / "lock")
        pid = entry.pid or (holder.pid if holder is not None else 0)
        if pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        return bool(pid)

    def _judge(self, each: _Running, code: int | None, *, is_cancelled: bool) -> None:
        """Write how an entry has ended, or have it wait to go on.

        Args:
            code: its exit code; None where another process started it.
        """
        entry = each.entry
        words = self._last_words(entry)
        stopped = words.stopped if words is not None and entry.words[0] == "start" else None
        if code is None and stopped is not None and words is not None and words.ts != entry.spawned:
            code = stopped.exit_code
        if is_cancelled:
            self._queue.end(entry, "cancelled", code)
            self._say(f"{_name(entry)}: cancelled")
        elif code == 0 and not (self._is_interrupted and _was_stopped(stopped)):
            by = stopped.stopped_by if stopped is not None and _was_stopped(stopped) else ""
            self._queue.end(entry, "stopped" if by else "done", code, by and f"stopped by {by}")
            self._say(f"{_name(entry)}: {f'stopped by {by}' if by else 'done'}")
        elif self._is_interrupted or code is None:
            self._queue.put_back(entry)
            self._say(f"{_name(entry)}: interrupted; it goes on when the queue does")
        else:
            self._retry(each, code)

    def _retry(self, each: _Running, code: int) -> None:
        """Have an entry that ended unexpectedly wait for another try, unless it would end so again."""
        entry = each.entry
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        reason = f"{how}: {last_line(self._queue.log(entry))}"
        failures = 1 if self._rounds(entry) > each.rounds else entry.failures + 1
        if code == DISK_EXIT:
            failures -= 1
        if code in FINAL_EXITS or failures > MAX_FAILURES:
            self._fail(entry, code, reason)
            return
        seconds = DISK_SECONDS if code == DISK_EXIT else RETRY_SECONDS
        self._queue.put_back(entry, failures=failures, seconds=seconds, reason=reason)
        self._say(f"{_name(entry)}: {reason}; goes on in {seconds:.0f} s")

    def _fail(self, entry: Entry, code: int | None, reason: str) -> None:
        self.failed += 1
        self._queue.end(entry, "failed", code, reason)
        self._say(f"{_name(entry)}: failed: {reason}")

    def _rounds(self, entry: Entry) -> int:
        words = self._last_words(entry)
        return 0 if words is None else words.round

    def _last_words(self, entry: Entry) -> LastWords | None:
        path = self._queue.home / RUNS_FOLDER / entry.name / EVENTS_FILE
        return last_words(path) if path.exists() else None


def _was_stopped(stopped: RunStopped | None) -> bool:
    return stopped is not None and stopped.final_state == "STOPPED"


def _name(entry: Entry) -> str:
    return f"{entry.number} {entry.name}"


def _without_options(environ: os._Environ[str]) -> dict[str, str]:
    """Options in the environment of who works the queue off are not those of who added an entry."""
    options = settings.variables() - settings.NOT_OPTIONS
    return {name: value for name, value in environ.items() if name not in options}
