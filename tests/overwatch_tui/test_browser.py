"""Serving the terminal to a browser: arguments, addresses, errors. tests/e2e has the browser."""

from __future__ import annotations

import socket
import sys

import pytest

from esper_overwatch.overwatch_tui.browser import HOST, PageServer, is_loopback, serve
from esper_overwatch.overwatch_tui.cli import without_serve
from esper_overwatch.protocol.errors import EsperError


def test_each_page_runs_the_command_without_serving() -> None:
    given = ["alpha", "--serve", "--port", "0", "--read-only", "--port=9", "--view", "log"]
    assert without_serve(given) == ["alpha", "--read-only", "--view", "log"]
    with socket.create_server((HOST, 0)) as listener:
        server = PageServer(["a b", "--read-only"], listener, "t")
        program = f"{sys.executable} -P -m esper_overwatch.overwatch_tui"
        assert server.command == f"{program} 'a b' --read-only --mouse"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:1", "localhost", "127.0.0.1", "[::1]:9", "[::1]"]
)
def test_a_loopback_address_is_answered(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "10.0.0.1:8000", "", ":8000", "127.0.0.1.evil"]
)
def test_a_strangers_name_is_not_answered(host: str) -> None:
    assert not is_loopback(host)


def test_a_port_in_use_is_told_with_a_remedy() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EsperError, match=f"port {port} of {HOST}: .*; choose another with --port"):
            serve([], port)
