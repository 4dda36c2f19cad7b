"""A run for the callbacks of all frameworks, which cannot disturb the training that it shows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.errors import EsperError, PublishError, first_line
from esper_overwatch.protocol.publishing.description import to_json_tree
from esper_overwatch.protocol.publishing.loop_commands import CommandCall
from esper_overwatch.protocol.publishing.run import PublishedRun, publish

logger = logging.getLogger(__name__)

COMMANDS = ("stop", "checkpoint")


class TrainingRun:
    """A published run in the hands of a framework's hooks.

    What cannot be published is left out with a warning; nothing but `start` raises.

    Args:
        run: the name of a run to be published when training starts, None = one is made; or a run that is
            published already, which its owner ends.
        resume: go on in the run of this name where there is one.

    Raises:
        PublishError: `resume` with a run that is published already.
    """

    def __init__(self, run: PublishedRun | str | None = None, resume: bool = False) -> None:
        self.run: PublishedRun | None = None
        """None before `start` and after `finish`."""
        self.name = run.name if isinstance(run, PublishedRun) else run
        """Name of the run; None where one is to be made."""
        self.config: Mapping[str, Any] = {}
        """Given to `start`."""
        self._resume, self._has_run = resume, False
        self._is_owner = not isinstance(run, PublishedRun)
        self._early: dict[str, CommandCall] = {}
        if isinstance(run, PublishedRun):
            if resume:
                raise PublishError(f"resume=True goes with a name; run {run.name} is published already")
            self.run = run

    def start(self, config: Mapping[str, Any]) -> None:
        """Publish the run, unless it is; from now on clients may send `stop` and `checkpoint`.

        A second training with the same callback goes on in the same run.

        Args:
            config: of the training; what has no form in JSON becomes text. It is added to that of a run
                that is published already.

        Raises:
            NameTaken: `resume`, and the run is live.
            FolderError: a folder or a socket cannot be used.
        """
        self.config = config
        if self.run is None:
            self.run = publish(self.name, config=config, resume=self._resume)
            self.name, self._resume, self._has_run = self.run.name, True, True
        else:
            self.configure(config)
        for command in COMMANDS:
            if call := self.run.asked(command):
                self._early[command] = call

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Publish what can be published, see `PublishedRun.log`; after `finish` the run goes on.

        So an evaluation after the training is in the same run, which the interpreter's end ends then.
        """
        try:
            if self.run is None and self._is_owner and self._has_run:
                self.start(self.config)
            if self.run is not None:
                self.run.log(values, step=max(0, step))
        except EsperError as error:  # it cannot go on, or is of an owner who wants it strict
            logger.warning("not published: %s", first_line(error))

    def configure(self, values: Mapping[str, Any]) -> None:
        """Add values of any kind to the run's configuration."""
        if self.run is not None:
            self.run.config.update(to_json_tree(values))

    def take_commands(self) -> tuple[CommandCall | None, bool, bool]:
        """Take the waiting commands: the oldest `checkpoint` or None, whether to save, whether to stop."""
        save, stop = self.asked("checkpoint"), self.asked("stop")
        is_to_save = save is not None or (stop is not None and stop.params.get("checkpoint", True))
        return save, is_to_save, stop is not None

    def asked(self, command: str) -> CommandCall | None:
        """The oldest `stop` or `checkpoint` that waits."""
        if self.run is None:
            return None
        return self._early.pop(command, None) or self.run.asked(command)

    def checkpoint_path(self, step: int, suffix: str, call: CommandCall | None = None) -> Path:
        """Path of a requested checkpoint in the run's folder, which is made.

        Args:
            step: of the training.
            suffix: of the file, such as `.ckpt`.
            call: the command that asked for it; its `tag` becomes part of the name.
        """
        assert self.run is not None
        tag = (call and call.params.get("tag")) or ""
        folder = self.run.path / "checkpoints"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"step-{step:09d}{tag and '-' + tag}{suffix}"

    def save(
        self, step: int, suffix: str, write: Callable[[str], object], call: CommandCall | None = None
    ) -> None:
        """Save a checkpoint and publish where it is; if that fails, `call` fails.

        Args:
            step: as above, as are `suffix` and `call`.
            suffix: of the file.
            write: writes it to a path.
            call: the command that asked for it.
        """
        try:
            path = self.checkpoint_path(step, suffix, call)
            part = path.with_name(f"part-{path.name}")
            write(str(part))
            os.replace(part, path)
        except Exception as error:
            logger.warning("a checkpoint of step %d was not saved", step, exc_info=True)
            if call is not None:
                call.fail(f"not saved: {first_line(error)}")
            return
        self.tell_files(path, step, call)

    def tell_files(self, path: Path, step: int, call: CommandCall | None = None) -> None:
        """Publish where a checkpoint is: a file, or the files of a folder."""
        if self.run is None:
            return
        total = 0
        try:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if not file.is_dir():
                    name = file.relative_to(path.parent).as_posix()
                    self.run.artifact(file, name=f"checkpoint/{name}", kind="checkpoint", step=step)
                    total += file.stat().st_size
        except (OSError, PublishError):
            logger.warning("checkpoint %s is saved, but was not published", path, exc_info=True)
        if call is not None:
            call.done(path=str(path.absolute()), bytes=total)

    def finish(self, error: BaseException | None = None) -> None:
        """End a run that `start` has published; that of another owner goes on."""
        if self.run is not None and self._is_owner:
            self.run.finish(error)
            self.run = None
