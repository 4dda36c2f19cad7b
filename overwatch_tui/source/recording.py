"""A recorded run of another machine: its journal is fetched, then played here."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

from esper_overwatch.protocol.client.ssh_command import RemoteCommand
from esper_overwatch.protocol.errors import EsperError, TunnelError
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .feed import NoFeed
from .link_status import LinkStatus
from .replay import ReplayFeed
from .temporary_folders import make_temporary_folder, remove_temporary_folder

DAMAGED = 1
"""Exit code of `replay` where it has printed what is whole."""
POLL_SECONDS = 0.02


class FetchedReplay(ReplayFeed):
    """A fetched journal, whose folder `close` removes; `state` is the run's, as its machine reports it.

    Raises:
        EsperError: the file holds no event.
    """

    def __init__(self, path: Path, folder: Path, state: str) -> None:
        super().__init__(path, math.inf)
        self._folder = folder
        self._state = state

    def update_link(self, link: LinkStatus) -> None:
        super().update_link(link)
        if self.is_over and not link.outcome:
            link.outcome = self._state
            link.advice = "R lists the runs, and what to type next on that machine"

    def close(self) -> None:
        super().close()
        remove_temporary_folder(self._folder)


class FetchFeed(NoFeed):
    """A feed without events, while `esper-daemon replay --json` on another machine sends a recording."""

    def __init__(self, command: RemoteCommand, name: str, host: str, state: str) -> None:
        super().__init__()
        self._command: RemoteCommand | None = command
        self._name, self._host, self._state = name, host, state
        self._problem = ""

    def take_recording(self) -> ReplayFeed | None:
        """The fetched recording, once; None before it is complete, and if it failed."""
        if self._command is None or not self._command.ended:
            return None
        command, self._command = self._command, None
        folder = make_temporary_folder("esper-recording-")
        path = folder / self._name / EVENTS_FILE
        try:
            path.parent.mkdir()
            with path.open("wb") as file:
                shutil.copyfileobj(command.output(good=(0, DAMAGED)), file)
            return FetchedReplay(path, folder, self._state)
        except (EsperError, OSError) as error:
            self._problem = f"{self._name} cannot be fetched: {error}"
            remove_temporary_folder(folder)
            return None
        finally:
            command.stop()

    def wait(self) -> ReplayFeed:
        """The recording, once it has been fetched.

        Raises:
            TunnelError: it cannot be.
        """
        while (recording := self.take_recording()) is None:
            if self._problem:
                raise TunnelError(self._problem)
            time.sleep(POLL_SECONDS)
        return recording

    def update_link(self, link: LinkStatus) -> None:
        link.state, link.name = "connecting", self._name
        size = "done" if self._command is None else f"{self._command.num_bytes / 1024:.0f} KiB so far"
        link.problem = self._problem or f"fetching {self._name} from {self._host}: {size}"

    def close(self) -> None:
        if self._command is not None:
            self._command.stop()
