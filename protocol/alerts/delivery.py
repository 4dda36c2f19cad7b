"""One attempt to tell somebody of an alert: over http, or by a command. No error shows an address."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

from esper_overwatch.protocol.version import __version__

from .rules import Rule, Shape

ANSWER_SECONDS = 10.0
"""For the connection, and for each part of the answer; only its status is read."""
COMMAND_SECONDS = 30.0
COMMAND_VARIABLE = "ESPER_ALERT"
"""The alert as JSON, for a command that does not read its standard input."""
MAX_DISCORD_CHARACTERS = 2_000
_PASSING_STATUSES = (408, 425, 429)
"""Of those from 400 to 499 that may be others later."""


class NotDelivered(Exception):
    """An attempt failed; the message is one line without an address.

    Attributes:
        is_final: whether another attempt would fail alike.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is sent goes to the address of the rule or nowhere."""

    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        return None


def deliver(rule: Rule, delivery: str, message: Mapping[str, Any]) -> None:
    """Make one attempt.

    Args:
        delivery: one of the rule's `deliveries`.
        message: the alert, as JSON has it; its `id` is the key by which a receiver knows repeats.

    Raises:
        NotDelivered: it failed.
    """
    if delivery == "webhook":
        _post(rule.webhook, SHAPES[rule.shape](message), str(message["id"]))
    else:
        _execute(rule.command, message)


def _post(address: str, content: Mapping[str, Any], key: str) -> None:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"esper-overwatch/{__version__}",
        "Idempotency-Key": key,
    }
    try:
        request = urllib.request.Request(address, json.dumps(content).encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=ANSWER_SECONDS):
            return
    except urllib.error.HTTPError as error:
        error.close()
        is_final = error.code < 500 and error.code not in _PASSING_STATUSES
        raise NotDelivered(f"the server answered {error.code}", is_final=is_final) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NotDelivered(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Why there was no answer, in words that cannot hold the address."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:.0f} s"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or 'failed'}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return f"no answer ({type(cause).__name__})"


def _execute(command: tuple[str, ...], message: Mapping[str, Any]) -> None:
    text = json.dumps(message)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, COMMAND_VARIABLE: text},
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(f"the command cannot be started: {error.strerror}") from None
    try:
        process.communicate(text.encode(), timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotDelivered(f"the command took more than {COMMAND_SECONDS:.0f} s and was ended") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise NotDelivered(f"the command ended with exit code {process.returncode}")


def _headline(message: Mapping[str, Any]) -> str:
    return f"[{message['level']}] {message['run']}: {message['title']}"


def _as_slack(message: Mapping[str, Any]) -> Mapping[str, Any]:
    text = f"{_headline(message)}\n{message['text']}".strip()
    return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def _as_discord(message: Mapping[str, Any]) -> Mapping[str, Any]:
    text = f"{_headline(message)}\n{message['text']}".strip()
    return {"content": text[:MAX_DISCORD_CHARACTERS], "allowed_mentions": {"parse": []}}


SHAPES: Mapping[Shape, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "json": lambda message: message,
    "slack": _as_slack,
    "discord": _as_discord,
}
