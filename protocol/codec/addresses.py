"""Addresses of runs on other machines: `tcp://[key@]host:port` and `ssh://[user@]host[:port][/run]`.

Text only: nothing is looked up and nothing is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from esper_overwatch.protocol.errors import BadName, RunNotFound

PORTS: Mapping[str, int] = {"qry": 0, "ctl": 1, "ev": 2}
"""Which port each socket has, counted from the one given."""
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.*-]+):([0-9]{1,5})")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_TCP_WITH_KEY = re.compile(r"tcp://(?:([A-Za-z0-9][A-Za-z0-9_.-]*)@)?([^@/]+)/?")
_SSH_LOGIN = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)")


def run_address(run: str | None, *, ssh: str | None, key: str | None) -> str | None:
    """The one text that a command line's RUN, `--ssh` and `--key` mean together: a name or an address.

    Raises:
        BadName: they name two runs or two keys, no host, or a key for what is not a TCP address.
    """
    if ssh is not None:
        return ssh_address_of(ssh, run)
    return run if key is None else with_key(run or "", key)


def is_remote_address(address: str | None) -> bool:
    """True if an address leads off this machine; None, and the name of a run, do not."""
    return address is not None and "://" in address


def require_local(address: str | None, what: str) -> None:
    """Refuse an address where only files on this machine will do.

    Raises:
        RunNotFound: it is another machine's; says how to go on.
    """
    if is_remote_address(address):
        raise RunNotFound(f"{what} writes files next to it: run it on that machine, `esper-daemon {what}`")


def endpoints_of(address: str) -> dict[str, str]:
    """The three endpoints behind `tcp://host:port`.

    Raises:
        BadName: it is not such an address.
    """
    match = _TCP.fullmatch(address)
    port = int(match[2]) if match else 0
    if match is None or not 0 < port <= 65_535 - max(PORTS.values()):
        raise BadName(f"{address!r} is not an address; write tcp://HOST:PORT, the first of three ports")
    return {name: f"tcp://{match[1]}:{port + more}" for name, more in PORTS.items()}


def parse_host_port(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`; an IPv6 address is written in brackets, and returned without.

    Raises:
        BadName: it is not that.
    """
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[2]) > 65_535:
        raise BadName(f"{text!r} is not an address; write HOST:PORT, such as 127.0.0.1:9464")
    return match[1].strip("[]"), int(match[2])


def parse_tcp_address(address: str) -> tuple[str | None, str]:
    """(name of the key or None, `host:port`) of `tcp://[key@]host:port`.

    Raises:
        BadName: it is not such an address.
    """
    match = _TCP_WITH_KEY.fullmatch(address)
    if match is None:
        raise BadName(f"{address!r} is not an address; write tcp://HOST:PORT")
    return match[1], match[2]


def with_key(address: str, key: str | None) -> str:
    """The TCP address with the key's name in it.

    Raises:
        BadName: it is not a TCP address, or names another key.
    """
    named, where = parse_tcp_address(address)
    if key and named and key != named:
        raise BadName(f"two keys are named, {named} and {key}; give one")
    key = key or named
    return f"tcp://{key}@{where}" if key else f"tcp://{where}"


@dataclass(frozen=True)
class SshDestination:
    """Login and run of an ssh address (None: the newest live run)."""

    login: str
    """`[user@]host`, as ssh takes it; a name of the ssh configuration is one, too."""
    port: int | None = None
    run: str | None = None

    @property
    def arguments(self) -> list[str]:
        """Arguments for ssh's command line."""
        return [*(["-p", str(self.port)] if self.port else []), self.login]


def parse_ssh_address(address: str) -> SshDestination:
    """`ssh://[user@]host[:port][/run]`, taken apart.

    Raises:
        BadName: it is not such an address.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise BadName(f"{address!r} is not an address; write ssh://user@host:port/run") from None
    login = parts.netloc.removesuffix(f":{port}") if port else parts.netloc
    if not _SSH_LOGIN.fullmatch(login):
        raise BadName(f"{address!r} names no host; write ssh://user@host/run")
    return SshDestination(login, port, unquote(parts.path.strip("/")) or None)


def ssh_address_of(text: str, run: str | None = None) -> str:
    """The address of `--ssh user@host[:run]`; a RUN given beside it counts as well.

    Raises:
        BadName: two different runs are named, or no host.
    """
    if text.startswith("ssh://"):
        host, named = text.rstrip("/"), parse_ssh_address(text).run
        address = host
    else:
        match = _SSH_LOGIN.match(text)
        login = match[0] if match else ""
        named = text[len(login) + 1 :] or None
        if not login or text[len(login) : len(login) + 1] not in ("", ":"):
            raise BadName(f"{text!r} names no host; write user@host or user@host:run")
        host = f"ssh://{login}"
        address = f"{host}/{named}" if named else host
    if named and run and named != run:
        raise BadName(f"two runs are named, {named} and {run}; give one")
    return f"{host}/{run}" if run and not named else address
