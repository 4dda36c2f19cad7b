"""How a published run describes itself, and the folder that it gets."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from esper_overwatch.protocol.codec.json_lines import plain
from esper_overwatch.protocol.errors import NameTaken, PublishError
from esper_overwatch.protocol.messages.events import RunConfigured, RunStarted
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.storage.folders import StrPath, is_valid_name
from esper_overwatch.protocol.version import __version__

logger = logging.getLogger(__name__)

MAX_TAG_CHARACTERS = 64
MAX_REPR_CHARACTERS = 1024
MAX_NUMBERED = 10_000
"""Largest number behind a name that is taken."""
_BASE_CHARACTERS = 56
"""Of a name that was made fit; a number behind it finds room."""


class Description(NamedTuple):
    """A run's description of itself."""

    config: dict[str, Any]
    tags: list[str]
    notes: str


class RunConfig(Mapping[str, Any]):
    """The configuration of a published run, which may still change: `run.config.update(batch=64)`.

    Safe from any thread.

    Args:
        config: it begins with, as JSON has it.
        emit: takes the event of a change.
        check: raises a PublishError where nothing can be changed any more.
        strict: raises for what has no form in JSON.

    Attributes:
        hello: part of the server's answer to `hello`: the newest configuration.
    """

    def __init__(
        self,
        config: dict[str, Any],
        emit: Callable[[RunConfigured], object],
        check: Callable[[], None],
        *,
        strict: bool,
    ) -> None:
        self.hello = {"config": config}
        self._emit, self._check, self._is_strict = emit, check, strict
        self._is_told = False
        """Whether there was a warning that nothing can be changed any more."""
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Any:
        return self.hello["config"][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.hello["config"])

    def __len__(self) -> int:
        return len(self.hello["config"])

    def update(self, values: object = None, /, **more: Any) -> None:
        """Set values; viewers, the list of runs and SQL have them at once.

        Args:
            values: a dict, a Namespace, a dataclass or the like.
            more: values by name.

        Raises:
            PublishError: of a run that is strict: a value has no form in JSON, or the run has ended.
        """
        try:
            self._check()
        except PublishError as error:
            if self._is_strict:
                raise
            if not self._is_told:
                logger.warning("the configuration is not changed: %s", error)
            self._is_told = True
            return
        given = [describe(each, (), "", strict=self._is_strict).config for each in (values, more)]
        with self._lock:
            config = {**self.hello["config"], **given[0], **given[1]}
            if config == self.hello["config"]:
                return
            self.hello["config"] = config  # in place of the old one, which a thread may be sending
            self._emit(RunConfigured(config=config))


def describe(config: object, tags: Sequence[str], notes: str, *, strict: bool) -> Description:
    """What a run was started with, as JSON has it.

    Raises:
        PublishError: `strict`: a value has no form in JSON; says which.
    """
    if strict:
        return Description(_plain_config(config or {}), _check_tags(tags), str(notes))
    tree = {} if config is None else to_json_tree(config)
    words = [tags] if isinstance(tags, str) else [str(tag)[:MAX_TAG_CHARACTERS] for tag in tags]
    found = tree if isinstance(tree, dict) else {"config": tree}
    return Description(found, [word for word in words if word], str(notes))


def first_event(run: RunFolder, boot: str, about: Description) -> RunStarted:
    """The event that a boot of a published run begins with; what only a training has is empty."""
    return RunStarted(
        run=run.id,
        name=run.name,
        boot=boot,
        pid=os.getpid(),
        host=socket.gethostname(),
        version=__version__,
        torch="",
        device="",
        task="",
        policy="",
        envs=0,
        slots=[],
        blueprints=[],
        stages=[],
        ops=[],
        heads=[],
        episode_epochs=0,
        rounds=0,
        host_parameters=0,
        seed=0,
        config=about.config,
        kind="published",
        tags=about.tags,
        notes=about.notes,
    )


def claim_folder(name: str | None, *, resume: bool, strict: bool, home: StrPath | None) -> RunFolder:
    """The folder of a new run, or of the one to go on with; a taken name gets a number.

    Raises:
        BadName: `strict`: it is not a name for a run.
        NameTaken: the run cannot be resumed; `strict`: or is there.
        FolderError: it cannot be made or used.
    """
    if name is None or strict or resume:
        return _claim(name, resume=resume, home=home)
    base = name if isinstance(name, str) and is_valid_name(name) else _fit(name)
    for number in range(1, MAX_NUMBERED):
        tried = base if number == 1 else f"{base[:_BASE_CHARACTERS]}-{number}"
        try:
            folder = _claim(tried, resume=False, home=home)
        except NameTaken:
            continue
        if tried != name:
            why = "is taken" if number > 1 else "is not a name for a run"
            logger.warning("run %r %s: this one is published as %s", name, why, tried)
        return folder
    raise NameTaken(f"run {base} and {MAX_NUMBERED} numbers behind it are taken: choose another name")


def _claim(name: str | None, *, resume: bool, home: StrPath | None) -> RunFolder:
    folder = RunFolder.claim(name, home=home, kind="published")
    if folder.has_events and not resume:
        folder.abandon()
        raise NameTaken(
            f"run {folder.name} has been published before; resume=True goes on, or choose another name"
        )
    return folder


def _fit(name: object) -> str:
    fitted = re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-._")[:_BASE_CHARACTERS]
    return fitted if is_valid_name(fitted) else "run"


def to_json_tree(value: Any, depth: int = 8) -> Any:
    """A configuration as JSON has it: what has no form there is given as text.

    Objects that hold their settings as attributes (a Namespace, a dataclass, a pydantic model) are dicts.
    """
    if isinstance(value, Mapping) and depth:
        return {_key_for(key): to_json_tree(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [to_json_tree(item, depth - 1) for item in value]
    try:
        if (held := _settings_of(value)) is not None and depth:
            return to_json_tree(held, depth - 1)
        return plain(value)
    except Exception:  # of the value's own code, too
        logger.debug("a part of the configuration is given as text", exc_info=True)
        return _text_of(value)


def _key_for(key: Any) -> str:
    try:
        return next(iter(plain({key: None})))  # type: ignore[no-any-return]
    except Exception:  # of the key's own code, too
        logger.debug("a key of the configuration is given as text", exc_info=True)
        return _text_of(key)


def _settings_of(value: Any) -> Mapping[str, Any] | None:
    """Attributes of an object that is made to hold them."""
    if isinstance(value, type):
        return None
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic's
        found = dump()
        return found if isinstance(found, Mapping) else None
    is_record = hasattr(value, "__dataclass_fields__") or hasattr(value, "__attrs_attrs__")
    if is_record or type(value).__name__ in ("Namespace", "SimpleNamespace"):
        names: Any = getattr(value, "__dict__", None) or getattr(type(value), "__slots__", ())
        return {str(each): getattr(value, each) for each in names if not str(each).startswith("_")}
    return None


def _text_of(value: object) -> str:
    try:
        return str(value)[:MAX_REPR_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    except Exception:  # of the value's own code
        logger.debug("a part of the configuration has no text", exc_info=True)
        return f"a {type(value).__name__}"


def _plain_config(config: Any) -> dict[str, Any]:
    """The configuration as JSON has it.

    Raises:
        PublishError: a value has no form in JSON; says which.
    """
    if not isinstance(config, Mapping):
        raise PublishError(f"config: a {type(config).__name__}: must be a dict")
    made = {}
    for key, value in config.items():
        try:
            made[str(key)] = plain(value)
        except (TypeError, RecursionError) as error:
            raise PublishError(
                f"config: {key} = {value!r:.80}: {error}; give numbers, text, lists, dicts"
            ) from None
    return made


def _check_tags(tags: Sequence[str]) -> list[str]:
    fits = all(isinstance(tag, str) and 0 < len(tag) <= MAX_TAG_CHARACTERS for tag in tags)
    if isinstance(tags, str) or not fits:
        raise PublishError(f"tags = {tags!r:.80}: must be a list of words of up to 64 characters")
    return list(tags)
