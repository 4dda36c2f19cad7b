"""A run that a sweep or a comparison trains: `esper-daemon start` in a child process, and what it tells."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from esper_overwatch.protocol.catalogue.about import edit_about
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError, NameTaken
from esper_overwatch.protocol.journal.reader import JournalRange, read
from esper_overwatch.protocol.messages.events import RunStopped
from esper_overwatch.protocol.messages.vocabulary import Stream
from esper_overwatch.protocol.runs import was_trained
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, esper_home
from esper_overwatch.protocol.storage.lock import holder_of
from esper_overwatch.trainer.queue.child import last_line, start_child

CLIENT_NAME = "esper-daemon"
LOOK_SECONDS = 0.5
"""Between two looks at a run that says nothing."""
_STREAM: Stream = "life"


class TrialRun:
    """Starts the run, or goes on with it where it has been trained before.

    Args:
        name: of the run.
        words: what follows the name on the command line of `start`.
        log: file for what the child prints.
        parent: name of the sweep or comparison, for the catalogue of runs.
        environ: of the child; None = this process's.

    Raises:
        NameTaken: another process trains it.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        log: Path,
        parent: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._log, self._parent = name, log, parent
        self._folder = esper_home() / "runs" / name
        if holder := holder_of(self._folder / "lock"):
            raise NameTaken(
                f"run {name} is trained by pid {holder.pid}; wait for its end, or: esper-daemon stop {name}"
            )
        try:
            self._child = start_child(["start", name, "--or-resume", *words], log, environ)
        except BlockingIOError:  # its parent was killed, and it has not come to lock its folder yet
            raise NameTaken(
                f"run {name} is about to start already: it writes to {log}; wait a moment"
            ) from None

    def events(self, is_over: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Events of the stream `life` as they come, until the process has ended; then the whole journal, also
        those of earlier boots.

        Args:
            is_over: asked now and then; true ends it early.
        """
        subscriber: Subscriber | None = None
        try:
            while self._child.poll() is None:
                if is_over():
                    return
                if subscriber is None:
                    subscriber = self._subscribe()
                    continue
                yield from (item for item in subscriber.drain() if isinstance(item, Event))
                subscriber.wait(LOOK_SECONDS)
        finally:
            if subscriber is not None:
                subscriber.close()
        yield from read_stream(self.name)

    def _subscribe(self) -> Subscriber | None:
        """None until the child has opened its sockets, so that no other run of a like name is meant."""
        holder = holder_of(self._folder / "lock")
        if (
            holder is not None
            and holder.pid == self._child.pid
            and (self._folder / "connection.json").exists()
        ):
            self._tell_parent()
            return Subscriber(self.name, streams=(_STREAM,), client=CLIENT_NAME)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(LOOK_SECONDS)
        return None

    def stop(self) -> None:
        """End it in order, with a checkpoint; returns once it has ended."""
        if self._child.poll() is None:
            self._child.terminate()
        self._child.wait()
        self._tell_parent()

    def _tell_parent(self) -> None:
        """Write of which sweep or comparison the run is a part, where it has a folder that can be written."""
        with suppress(EsperError):
            edit_about(self._folder, lambda about: msgspec.structs.replace(about, parent=self._parent))

    def failure(self, rounds: int) -> str | None:
        """After its end: why it did not train all rounds; None if it did."""
        code = self._child.wait()
        if code != 0:
            return f"exit code {code}: {last_line(self._log)}"
        stops = [event.data for event in read_stream(self.name) if isinstance(event.data, RunStopped)]
        if stops and stops[-1].rounds < rounds:
            return f"stopped after round {stops[-1].rounds} of {rounds}"
        return None


def read_stream(run: str, stream: Stream = _STREAM) -> Iterator[Event]:
    """Events of a stream that a run's journal has now."""
    if was_trained(run):
        events = esper_home() / "runs" / run / EVENTS_FILE
        yield from read(events, on_bad=lambda *_: None, wanted=JournalRange(stream))
