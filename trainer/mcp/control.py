"""Tools that steer a live run; a server has them only where its user allows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.errors import BadName, RequestError
from esper_overwatch.protocol.messages.vocabulary import Level

from .answers import plain
from .targets import Targets

WAIT_SECONDS = 10.0
"""Time that a tool waits for the effect of its command."""
POLL_SECONDS = 0.1
_OPEN = ("accepted", "waiting", "running")


class ControlTools:
    """Functions that become tools; each sends one command, of which the audit events keep the reason."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def escalate(
        self,
        run: str | None = None,
        level: Level = "DEBUG",
        epochs: int = 5,
        env: int | None = None,
        reason: str = "",
    ) -> dict[str, Any]:
        """Collect more telemetry for some epochs, then fall back.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            level: OFF, MINIMAL, NORMAL or DEBUG.
            epochs: Epochs that the level holds.
            env: Escalate this env only.
            reason: For the run's log.
        """
        return self._send(
            run, lambda client: client.escalate(level=level, epochs=epochs, env=env, reason=reason)
        )

    def pause(self, run: str | None = None, reason: str = "") -> dict[str, Any]:
        """Pause the training at the end of this epoch.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            reason: For the run's log.
        """
        return self._send(run, lambda client: client.pause(reason=reason))

    def resume(self, run: str | None = None, reason: str = "") -> dict[str, Any]:
        """Resume a paused training.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            reason: For the run's log.
        """
        return self._send(run, lambda client: client.resume(reason=reason))

    def checkpoint(self, run: str | None = None, tag: str = "", reason: str = "") -> dict[str, Any]:
        """Save a checkpoint at the end of this epoch.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            tag: Part of the file's name.
            reason: For the run's log.
        """
        return self._send(run, lambda client: client.checkpoint(tag=tag, reason=reason))

    def stop(self, confirm_name: str, run: str | None = None, reason: str = "") -> dict[str, Any]:
        """End a run at the end of this epoch, with a checkpoint. It does not go on until somebody resumes it.

        Args:
            confirm_name: The run's full name, typed again.
            run: Name or id, or the beginning of one; the newest live run by default.
            reason: For the run's log.
        """

        def stop_if_confirmed(client: Client) -> dict[str, Any]:
            if confirm_name != client.run.name:
                raise BadName(f"not stopped: confirm_name must be {client.run.name}")
            return client.stop(reason=reason)

        return self._send(run, stop_if_confirmed, waits=False)

    def _send(
        self, run: str | None, command: Callable[[Client], dict[str, Any]], *, waits: bool = True
    ) -> dict[str, Any]:
        """Send a command and wait a little for its effect; the answer's `state` says how far it is."""
        with self._targets.connect(run) as client:
            answer = {"run": client.run.name, **command(client)}
            end = time.monotonic() + WAIT_SECONDS
            while waits and answer["state"] in _OPEN and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
                answer |= client.op(answer["id"])
        if answer["state"] == "failed":
            error = answer.get("error") or {}
            raise RequestError(error.get("kind", "internal"), error.get("message", "the command failed"))
        made: dict[str, Any] = plain(answer)
        return made
