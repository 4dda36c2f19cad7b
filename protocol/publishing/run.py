"""Publish from a training loop of one's own:

from esper_overwatch import publish
with publish("my-run", config={"learning_rate": 3e-4}) as run:
    for step in range(1000):
        run.log(step=step, loss=loss, accuracy=accuracy)
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from numbers import Real
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Literal

from esper_overwatch.protocol.alerts.rules import Rule
from esper_overwatch.protocol.errors import FolderError, PublishError
from esper_overwatch.protocol.machine.provenance import ProvenanceReport
from esper_overwatch.protocol.machine.sampler import SystemSampler
from esper_overwatch.protocol.messages.events import STOP_BY, Artifact, Mark, RunStopped
from esper_overwatch.protocol.messages.vocabulary import Severity
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.disk import DiskWatch
from esper_overwatch.protocol.server.run_kind import RunKind
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.folders import StrPath

from .alerting import attach_rules, find_rules, loop_alert
from .description import Description, RunConfig, claim_folder, describe, first_event
from .judgement import LoopJudge
from .left_out import LeftOut, never_raises
from .loop_commands import CommandCall, LoopCommands
from .run_end import end_of, log_line, uninterrupted
from .summary import RunSummary
from .value_queue import MAX_QUEUED_NUMBERS, LoggedNumbers, ValueQueue
from .values import MAX_STEP, Note, check_file, check_step, check_value_name, fit_step, kind_of, sort_values

logger = logging.getLogger(__name__)

MAX_NAMES = 10_000
"""Names of numbers in a run."""
MAX_QUICK_VALUES = 64
"""Up to this many numbers at a time are logged without weighing them."""
MAX_NOTE_CHARACTERS = 256
FLUSH_SECONDS = 5.0
SAMPLE_SECONDS = 5.0
"""Between samples of the machine; a slow loop's journal would else hold little beside them."""


def publish(
    name: str | None = None,
    *,
    config: object = None,
    tags: Sequence[str] = (),
    notes: str = "",
    resume: bool = False,
    strict: bool = False,
    home: StrPath | None = None,
    alerts: StrPath | None = None,
) -> PublishedRun:
    """Publish a run: viewers on this machine, through ssh or a gateway see what the loop logs.

    It never ends the loop: what cannot be published is left out, with a warning and a line of the run's log
    for each name. Where the home folder cannot be used, the run is published in a temporary one; a warning
    says so.

    Args:
        name: of the run; None = one is made (`run-7f3a`). One that is taken gets a number (`mine-2`), one
            that cannot be a run's is made fit; the log says so.
        config: what the run was started with: a dict, a Namespace, a dataclass or the like; what has no form
            in JSON is given as text.
        tags: words to find it by.
        notes: what it is for.
        resume: go on in the run of this name where there is one.
        strict: True raises for what is left out or changed otherwise.
        home: instead of `$ESPER_HOME`.
        alerts: file of the rules that raise alerts; None = the user's own. See docs/reference/alerts.md.

    Raises:
        AlertRulesError: `strict`: a rule is wrong, or `alerts` is not there.
        NameTaken: with `resume`, the run is live, or is a training of `esper-daemon`; `strict`: or is there.
        FolderError: no folder can be used; `strict`: or the home folder or a socket cannot.
        BadName, PublishError: `strict`: it is not a name; `config` or `tags` cannot be sent.
    """
    about = describe(config, tags, notes, strict=strict)
    rules = find_rules(alerts, strict=strict)

    def start() -> PublishedRun:
        folder = claim_folder(name, resume=resume, strict=strict, home=home)
        try:
            return PublishedRun(folder, about, strict=strict, rules=rules)
        except BaseException:
            folder.abandon()
            raise

    try:
        return start()
    except FolderError as error:
        if strict:
            raise
        with suppress(OSError):  # without a temporary folder the second try says what is wrong
            home = tempfile.mkdtemp(prefix="esper-")
            logger.warning("%s; it is published in %s: ESPER_HOME=%s esper-tui shows it", error, home, home)
    return start()


class PublishedRun:
    """A run that a loop publishes; see `publish`. Safe from any thread; a forked child cannot use it.

    Attributes:
        name: of the run.
        id: of the run.
        path: its folder.
        config: what it was started with; `config.update` changes it.
        summary: last, least, greatest and mean of each metric, and values set by hand.
        note: takes what is left out; None where the run is strict.
    """

    def __init__(
        self, folder: RunFolder, about: Description, *, strict: bool = False, rules: Sequence[Rule] = ()
    ) -> None:
        self.name, self.id, self.path = folder.name, folder.id, folder.path
        self._ended: str | None = None
        """Why nothing can be logged any more."""
        self._max_quick = MAX_QUICK_VALUES
        """Less than none once nothing can be logged."""
        self._left_out = LeftOut(lambda event: self._emit(event))
        self.note: Note | None = None if strict else self._left_out
        self.summary = RunSummary(self._require_live, self.note)
        if folder.has_events:
            self.summary.restore(folder.events)
        self._folder = folder
        self._about = about
        self._step = self.summary.step
        self._names: set[str] = set()
        self._kinds: set[type] = {int, float}
        """Numbers that `log` lets pass without a look at each."""
        self._commands = LoopCommands(folder.name)
        self._queue = ValueQueue(self.summary, self._on_step, folder.path / "pictures")
        self._numbers = self._queue.numbers
        self._emit = self._queue.emit
        self._judge = LoopJudge(self._emit)
        self.config = RunConfig(about.config, self._emit, self._require_live, strict=strict)
        watch = DiskWatch(self._emit, self._emit)
        self._sampler = SystemSampler(folder.path, watch.take, interval=SAMPLE_SECONDS)
        self._end_lock = threading.RLock()
        self._server = Server(
            folder,
            hello=self.config.hello,
            emitter=self._queue,
            kind=RunKind("published", self._commands.methods, self._describe),
        )
        self.boot = self._server.boot
        self._server.observe(self._judge.observe)
        self._provenance: ProvenanceReport | None = None
        try:
            with uninterrupted():
                attach_rules(self._server, rules)
                self._server.on_deleted = self._leave
                self._server.start()
                self._commands.attach(self._server)
                atexit.register(self._finish_at_exit)
                _live.add(self)
                self._emit(first_event(folder, self.boot, about))
                self._server.set_state("TRAINING")
            self._provenance = ProvenanceReport(self._emit)
            self._sampler.start()
        except BaseException as error:  # where it is known already, it has an end
            self.finish(error)
            raise

    @property
    def step(self) -> int:
        """The newest step logged; -1 before the first."""
        return self._step

    def log(
        self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any
    ) -> None:
        """Publish values: numbers, arrays, text, files, images of Pillow, tables (a list of dicts, a frame).

        It never waits for a disk, a device or a viewer.

        Args:
            values: by name; for names that are not Python's, such as `env/3/loss`. Dicts in it make groups.
            step: where in the run, a whole number from 0; None = the one after the newest.
            more: values, by name.

        Raises:
            PublishError: of a run that is strict: a name, a value or the step cannot be logged, or it has
                ended; logs nothing.
        """
        try:
            if values is not None:
                more = {**values, **more}
            if step is None:
                step = self._step + 1
            if (
                type(step) is int
                and 0 <= step <= MAX_STEP
                and more.keys() <= self._names
                and self._kinds.issuperset(map(type, more.values()))
                and len(more) <= self._max_quick
                and len(self._numbers) < MAX_QUEUED_NUMBERS
            ):
                self._step = step
                self._numbers.append(LoggedNumbers(time_ns(), step, more))
            else:
                self._log_checked(step, more)
        except Exception as error:
            if self.note is None:
                raise
            self.note(f"{error!s:.160}", error)

    def _log_checked(self, step: object, values: Mapping[str, Any]) -> None:
        """`log` of what it has not seen before, or of more than plain numbers."""
        self._require_live()
        step = check_step(step) if self.note is None else fit_step(step, self._step, self.note)
        if len(values) > MAX_NAMES:
            refusal = f"{len(values)} values in one log, of at most {MAX_NAMES}; log an array"
            if self.note is None:
                raise PublishError(refusal)
            self.note("more values", refusal)
            values = dict(islice(values.items(), MAX_NAMES))
        found = sort_values(values, self.note)
        self._take_names(found.numbers)
        self._kinds |= {type(number) for number in found.numbers.values() if isinstance(number, Real)}
        self._step = step
        self._queue.emit_values(step, found)

    def _take_names(self, numbers: dict[str, Any]) -> None:
        """Know the names of numbers; those beyond the limit are left out."""
        new = numbers.keys() - self._names
        if (beyond := len(self._names) + len(new) - MAX_NAMES) > 0:
            refusal = (
                f"{min(new)}: the run has {len(self._names)} names already, of {MAX_NAMES}; "
                "put what varies into the step or into an array"
            )
            if self.note is None:
                raise PublishError(refusal)
            self.note("more names", refusal)
            for name in [name for name in numbers if name in new][-beyond:]:
                del numbers[name]
        self._names.update(numbers)  # `|=` with what is no set copies all of them

    @never_raises
    def artifact(
        self,
        path: StrPath,
        *,
        name: str = "",
        kind: str = "",
        step: int | None = None,
        digest: bool = False,
    ) -> None:
        """Publish where a file is: a checkpoint, a video. It is not copied; of an image a preview is made.

        Args:
            path: of the file.
            name: empty = the file's own.
            kind: such as `model`; empty = `image` or `file` by its suffix.
            step: None = the newest.
            digest: read it here and now, and send its BLAKE2b digest.

        Raises:
            PublishError: of a run that is strict: there is no such file, or the run has ended.
        """
        self._require_live()
        file = Path(path)
        name = check_value_name(name or file.name)
        where, size, found = check_file(name, file, digest=digest)
        at = max(0, self._step) if step is None else check_step(step)
        self._queue.emit_file(
            Artifact(
                step=at,
                name=name,
                path=str(where),
                kind=check_value_name(kind or kind_of(file)),
                bytes=size,
                digest=found,
            )
        )

    @never_raises
    def mark(self, text: str) -> None:
        """Note something on the run's timeline.

        Raises:
            PublishError: of a run that is strict: it is empty or longer than 256 characters, or the run has
                ended.
        """
        self._require_live()
        text = str(text)
        if not 0 < len(text) <= MAX_NOTE_CHARACTERS:
            raise PublishError(f"a mark of {len(text)} characters: must have 1 to {MAX_NOTE_CHARACTERS}")
        self._emit(Mark(text=text, client=self.name, uid=os.getuid(), pid=os.getpid()))

    @never_raises
    def alert(self, title: str, text: str = "", level: Severity = "warning") -> None:
        """Tell somebody of something: the journal, viewers, and rules such as `alert.level >= warning`.

        The same at the same step is sent once.

        Args:
            title: in a few words; 256 characters of it are sent.
            text: more of it; likewise 2,000.
            level: `info`, `warning` or `critical`.

        Raises:
            PublishError: of a run that is strict: there is no title or no such level, or the run has ended.
        """
        self._require_live()
        self._emit(loop_alert(self.id, max(0, self._step), str(title), str(text), level))

    def watch(self, name: str, *, better: Literal["max", "min"] = "max", patience: int) -> None:
        """Ask for a warning (`stalled`) while a metric does not become better for many steps.

        NaN, infinite values and silence are judged without it. A metric named again gets the later limits.

        Args:
            name: of a metric, as it is logged.
            better: whether greater or smaller values are the better ones.
            patience: steps after the best value, from 1.

        Raises:
            PublishError: one of these is not what it is to be, or the run has ended.
        """
        self._require_live()
        check_value_name(name)
        if better not in ("max", "min"):
            raise PublishError(f"watch {name}: better = {better!r:.80}: must be 'max' or 'min'")
        if check_step(patience) < 1:
            raise PublishError(f"watch {name}: patience = {patience}: must be at least 1 step")
        self._judge.watch(name, better, patience)

    def command(self, name: str, /, help: str = "", **parameters: Any) -> None:
        """Let clients send a command, which `asked` gives the loop.

        Args:
            name: lower-case letters, digits, `_`, `.` and `-`, such as `checkpoint`.
            help: what it does, in one line.
            parameters: by name a type (`bool`, `int`, `float`, `str`), or a default, whose type is meant.

        Raises:
            PublishError: the name is not free, or a parameter is of another type.
        """
        self._require_live()
        self._commands.register(name, help, parameters)

    def asked(self, name: str) -> CommandCall | None:
        """The oldest command of this name that waits, to be carried out now; None where none does.

        A name that was not registered is from now on, without parameters; `stop` and `checkpoint` with those
        that a training has. What was asked for before under this name counts as done now.

        Raises:
            PublishError: it is not a name for a command.
        """
        if name in ("pause", "resume"):
            raise PublishError(f"{name} is not asked for: call run.pause_point() where the loop may wait")
        return None if self._ended is not None else self._commands.take(name)

    def pause_point(self) -> None:
        """Wait here while the run is paused, until `resume`, or until `stop` is to be asked for.

        The first call gives the run the commands `pause` and `resume`. One `resume` ends all pauses.
        """
        if self._ended is not None:
            return
        commands, server = self._commands, self._server
        call = commands.take_pause()
        if call is None:
            return
        commands.finish_waiting("resume")  # of the pause before, should one have come so late
        server.set_state("PAUSED", f"pause by {call.client}")
        call.done()
        while (resume := commands.take("resume")) is None and not commands.is_waiting("stop"):
            commands.finish_waiting("pause")
            server.beat(0, max(0, self._step))
            server.mailbox.wait(1.0)
            if self._ended is not None:
                return
        commands.finish_waiting("pause")
        server.set_state("TRAINING", f"resume by {resume.client}" if resume else "stop")
        if resume is not None:
            resume.done()
        commands.finish_waiting("resume")

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until the journal has what was logged before; False where it was not in time."""
        end = time.monotonic() + timeout
        waiting = self._queue.wait_read(timeout)
        return self._ended is None and self._server.flush(max(0.0, end - time.monotonic())) and not waiting

    def finish(self, error: BaseException | str | None = None) -> None:
        """End the run: what was logged is written, clients are notified. Later calls do nothing.

        Args:
            error: why it failed; None = it did not.
        """
        with self._end_lock:
            if self._ended is not None:
                return
            self._refuse_all("has ended")
        atexit.unregister(self._finish_at_exit)
        reason, exit_code, text = end_of(error)
        if self._commands.stopped_by is not None and error is None:
            reason = STOP_BY + self._commands.stopped_by
        try:
            self._end_commands(error, reason, text)
        finally:  # a second Ctrl-C ends the waiting, not the run's last words
            with uninterrupted():
                self._emit(self.summary.take())
                self._emit(RunStopped(reason=reason, exit_code=exit_code, rounds=0, error=text))
                self._server.close(reason)
                self._folder.release()

    def _end_commands(self, error: BaseException | str | None, reason: str, text: str | None) -> None:
        """Bring what was logged into the journal, and tell who waits for a command how the run ends."""
        server = self._server
        server.set_state("STOPPING", reason)
        self._sampler.close()
        if self._provenance is not None:
            self._provenance.close()
        self._commands.close(text)
        if isinstance(error, BaseException) and text is not None:
            self._emit(log_line(error))
        if waiting := self._queue.wait_read(FLUSH_SECONDS):
            self._left_out("devices", f"{waiting} values of a device that does not answer, or pictures")
        self._left_out.close()
        server.flush(FLUSH_SECONDS)
        self._commands.close(text)  # what was accepted while the state changed

    def _leave(self) -> None:
        """The folder was deleted, as the log has told: publish no more, and let the loop go on as it is."""
        self.note, self._left_out.is_silent = self._left_out, True
        threading.Thread(target=self.finish, args=("its folder was deleted",), daemon=True).start()

    def _finish_at_exit(self) -> None:
        """The interpreter ends, and still knows an error that nobody caught; at a prompt it is an old one."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.finish(None if hasattr(sys, "ps1") else error)

    def _refuse_all(self, why: str) -> None:
        self._ended, self._max_quick = why, -1

    def _require_live(self) -> None:
        if self._ended is not None:
            raise PublishError(f"run {self.name} {self._ended}: nothing can be published any more")

    def _on_step(self, step: int) -> None:
        self._server.beat(0, max(0, step))

    def _describe(self) -> dict[str, Any]:
        about = self._about
        return {
            "step": self._step if self._step >= 0 else None,
            "tags": about.tags,
            "notes": about.notes,
            "commands": self._commands.describe(),
        }

    def __enter__(self) -> PublishedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)


_live: weakref.WeakSet[PublishedRun] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    """In a forked child: the I/O thread, the lock and the sockets are the parent's."""
    for run in list(_live):
        run._refuse_all(f"belongs to pid {os.getppid()}, of which this is a forked child")
        run._left_out.forget_run()


os.register_at_fork(after_in_child=_leave_all_to_parent)
