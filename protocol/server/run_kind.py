"""Kind of run that a server serves: its methods, and its description of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.protocol.messages.commands import METHODS, Method
from esper_overwatch.protocol.messages.vocabulary import RunKindName


@dataclass(frozen=True)
class RunKind:
    """A training of `esper-daemon`, or a run that somebody's own loop publishes."""

    name: RunKindName = "training"
    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    """May grow while the run lives; others are refused as `unknown_method`."""
    describe: Callable[[], dict[str, Any]] = dict
    """Further fields of `hello` and `status`; called in the I/O thread."""


TRAINING = RunKind()
