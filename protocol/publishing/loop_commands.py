"""Commands that a loop registers, and those that were sent to it."""

from __future__ import annotations

import re
import threading
from collections import deque
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from esper_overwatch.protocol.codec.json_lines import plain
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.messages.commands import METHODS, Method, OpParams, Params
from esper_overwatch.protocol.server.mailbox import Command
from esper_overwatch.protocol.server.server import Server

PARAMETER_TYPES: tuple[type, ...] = (bool, int, float, str)
MAX_COMMANDS = 64
MAX_PARAMETER_CHARACTERS = 1024
MAX_HELP_CHARACTERS = 1024
_COMMAND_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_STANDARD = ("stop", "checkpoint")
"""Commands of a training that a loop may ask for without registering them: they have its parameters."""
_PAUSE = ("pause", "resume")
_HELP = {
    "stop": "End the loop in order, when it next asks for this command.",
    "checkpoint": "Save a checkpoint; the tag becomes part of its name.",
    "pause": "Pause the loop at its next pause point.",
    "resume": "Continue the paused loop.",
}
"""Effect of the commands that the loop did not describe itself."""
_ALWAYS = tuple(
    m.name for m in METHODS.values() if m.socket == "qry" or m.at == "once" or m.name == "op.cancel"
)
_WITHOUT = frozenset({"param.get"})
"""Queries that are about a training only."""


class CommandCall:
    """A command that somebody has sent, in the hands of the loop. It is true in a condition.

    It counts as done when the loop asks for the same command again, or ends in order; `done` and `fail` say
    it at once, and more exactly.

    Attributes:
        name: of the command.
        params: by name; `call["every"]` is `call.params["every"]`.
        client: how the sender calls itself.
        reason: that the sender gave.
    """

    def __init__(self, command: Command, server: Server) -> None:
        self.name = command.method
        self.params: dict[str, Any] = msgspec.to_builtins(command.params)
        self.client = command.client
        self.reason = command.reason
        self.is_open = True
        self._command = command
        self._server = server

    def __getitem__(self, parameter: str) -> Any:
        return self.params[parameter]

    def done(self, **result: Any) -> None:
        """Report that it has taken effect; `result` is what the sender gets who waits for it.

        Raises:
            PublishError: the result has no form in JSON.
        """
        try:
            report = plain(result)
        except (TypeError, RecursionError) as error:
            raise PublishError(
                f"the result of {self.name}: {error}; give numbers, text, lists, dicts"
            ) from None
        if self.is_open:
            self.is_open = False
            self._server.done(self._command, report)

    def fail(self, message: str) -> None:
        """Report that it could not be carried out."""
        if self.is_open:
            self.is_open = False
            self._server.failed(self._command, "internal", str(message))


class LoopCommands:
    """The methods of a published run, and the commands that wait for its loop. Safe from any thread.

    Args:
        run: its name, for messages.

    Attributes:
        methods: what can be asked of the run; grows as the loop registers.
    """

    def __init__(self, run: str) -> None:
        self.methods: dict[str, Method] = {name: METHODS[name] for name in _ALWAYS if name not in _WITHOUT}
        self._run = run
        self._own: dict[str, Method] = {}
        self._waiting: dict[str, deque[Command]] = {}
        self._taken: dict[str, CommandCall] = {}
        self._lock = threading.RLock()
        self._server: Server | None = None

    def attach(self, server: Server) -> None:
        """Take commands from this server from now on."""
        self._server = server

    def register(self, name: str, help_: str, parameters: dict[str, Any]) -> None:
        """Let clients send a command.

        Args:
            name: lower-case letters, digits, `_`, `.` and `-`.
            help_: what it does, in one line.
            parameters: by name a type (`bool`, `int`, `float`, `str`), or a value: the default and its type.

        Raises:
            PublishError: the name is not free, or a parameter is of another type.
        """
        if not isinstance(name, str) or not _COMMAND_NAME.fullmatch(name):
            raise PublishError(
                f"{name!r:.80} is not a name for a command: lower-case letters, digits, '_', '.'"
            )
        if name in _ALWAYS or name in _PAUSE:
            raise PublishError(f"{name} cannot be registered: every run has it (pause: run.pause_point)")
        if not isinstance(help_, str):
            raise PublishError(f"{name}: its help must be a line of text, not {help_!r:.80}")
        if len(help_) > MAX_HELP_CHARACTERS:
            raise PublishError(f"{name}: a help of {len(help_)} characters, of at most {MAX_HELP_CHARACTERS}")
        fields = [(key, *_field(name, key, value)) for key, value in parameters.items()]
        params: Any = msgspec.defstruct(
            f"{name}_params", fields, bases=(Params,), frozen=True, forbid_unknown_fields=True, kw_only=True
        )
        with self._lock:
            if name in self.methods:
                raise PublishError(f"{name} is registered already")
            if len(self._own) >= MAX_COMMANDS:
                raise PublishError(f"{name}: {MAX_COMMANDS} commands are registered already")
            self._add(_method(name, params, help_))

    def _add(self, method: Method) -> None:
        self._waiting[method.name] = deque()
        self._own[method.name] = method
        self.methods[method.name] = method

    def _register_standard(self, name: str) -> None:
        with self._lock:
            if name in self._own:
                return
            if name in _STANDARD or name in _PAUSE:
                self._add(METHODS[name])
                return
        self.register(name, "", {})

    def describe(self) -> dict[str, Any]:
        """Effect and parameters of each command by name, for `hello`."""
        with self._lock:
            return {
                name: {"help": _HELP.get(name, method.effect), "parameters": _describe(method.params)}
                for name, method in self._own.items()
            }

    def take(self, name: str) -> CommandCall | None:
        """The oldest command of this name that waits; the one taken before it is done now."""
        if name not in self._waiting:
            self._register_standard(name)
        server = self._server
        if server is None or not (len(server.mailbox) or name in self._taken or self._waiting[name]):
            return None
        with self._lock:
            self._sort(server)
            earlier = self._taken.pop(name, None)
            if earlier is not None:
                earlier.done()
            if not self._waiting[name]:
                return None
            call = self._taken[name] = CommandCall(self._pop(server, name), server)
            return call

    def take_pause(self) -> CommandCall | None:
        """The command `pause`, which exists from now on together with `resume`."""
        if "resume" not in self._waiting:
            self._register_standard("resume")
        return self.take("pause")

    def finish_waiting(self, name: str) -> None:
        """Report those of this name that wait as done: the run is already as they want it."""
        server = self._server
        if server is None or not self.is_waiting(name):
            return
        with self._lock:
            while self._waiting[name]:
                CommandCall(self._pop(server, name), server).done()

    def is_waiting(self, name: str) -> bool:
        """True if a command of this name waits."""
        server = self._server
        if server is not None and len(server.mailbox):
            with self._lock:
                self._sort(server)
        return bool(self._waiting.get(name))

    @property
    def stopped_by(self) -> str | None:
        """Sender of the `stop` that the loop has taken; None where there was none."""
        call = self._taken.get("stop")
        return None if call is None else call._command.author

    def _sort(self, server: Server) -> None:
        for command in server.mailbox.poll(keep=True):
            if command.method == "op.cancel":
                server.mailbox.num_kept -= 1
                self._cancel(server, command)
            else:
                self._waiting[command.method].append(command)

    def _pop(self, server: Server, name: str) -> Command:
        """The oldest that waits of this name, which does so no longer."""
        server.mailbox.num_kept -= 1
        return self._waiting[name].popleft()

    def _cancel(self, server: Server, cancel: Command) -> None:
        assert isinstance(cancel.params, OpParams)
        for waiting in self._waiting.values():
            for command in waiting:
                if command.id == cancel.params.op:
                    waiting.remove(command)
                    server.mailbox.num_kept -= 1
                    server.failed(command, "cancelled", f"cancelled by {cancel.client}")
                    server.done(cancel, {"op": command.id})
                    return
        server.failed(cancel, "not_found", f"no command {cancel.params.op} waits; the loop may have it")

    def close(self, error: str | None) -> None:
        """End the commands that are open: done are those that a loop has taken which ended in order."""
        server = self._server
        if server is None:
            return
        with self._lock:
            self._sort(server)
            for call in self._taken.values():
                if error is None:
                    call.done()
                else:
                    call.fail(f"the loop ended: {error}")
            self._taken.clear()
            for name, waiting in self._waiting.items():
                while waiting:
                    command = self._pop(server, name)
                    server.failed(command, "cancelled", "the run ended before its loop asked for it")


def _field(command: str, key: str, value: Any) -> tuple[Any, ...]:
    """Type of a parameter, and its default where it has one."""
    kind = value if isinstance(value, type) else type(value)
    if kind not in PARAMETER_TYPES or key.startswith("_") or not key.isidentifier():
        raise PublishError(
            f"{command}: parameter {key!r:.80} = {value!r:.80}: must be bool, int, float, str or a value of "
            "these, and its name one of Python's"
        )
    annotation = Annotated[str, Meta(max_length=MAX_PARAMETER_CHARACTERS)] if kind is str else kind
    return (annotation,) if isinstance(value, type) else (annotation, value)


def _method(name: str, params: type[Params], help_: str) -> Method:
    return Method(
        name=name, socket="ctl", params=params, states=("STARTING", "TRAINING", "PAUSED"), effect=help_
    )


def _describe(params: type[Params]) -> dict[str, dict[str, Any]]:
    described = {}
    schema = msgspec.json.schema_components([params])[1][params.__name__]["properties"]
    names = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}
    for key, of in schema.items():
        row = {"type": names.get(of.get("type"), "str"), **{k: of[k] for k in ("default", "enum") if k in of}}
        described[key] = row
    return described
