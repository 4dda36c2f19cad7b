"""Addresses of runs on other machines, as text."""

from __future__ import annotations

import pytest

from esper_overwatch.protocol.codec.addresses import (
    SshDestination,
    endpoints_of,
    is_remote_address,
    parse_ssh_address,
    parse_tcp_address,
    require_local,
    run_address,
    ssh_address_of,
    with_key,
)
from esper_overwatch.protocol.errors import BadName, RunNotFound


@pytest.mark.parametrize(
    ("text", "run", "address"),
    [
        ("gpu-box", None, "ssh://gpu-box"),
        ("me@gpu-box", "digits", "ssh://me@gpu-box/digits"),
        ("me@gpu-box:digits", None, "ssh://me@gpu-box/digits"),
        ("me@gpu-box:digits", "digits", "ssh://me@gpu-box/digits"),
        ("[::1]:digits", None, "ssh://[::1]/digits"),
        ("ssh://me@gpu-box:2222", "digits", "ssh://me@gpu-box:2222/digits"),
        ("ssh://me@gpu-box:2222/digits", None, "ssh://me@gpu-box:2222/digits"),
        ("ssh://me@gpu-box:2222/digits", "digits", "ssh://me@gpu-box:2222/digits"),
    ],
)
def test_ssh_address_of_an_option(text: str, run: str | None, address: str) -> None:
    assert ssh_address_of(text, run) == address


def test_ssh_address_is_taken_apart() -> None:
    assert parse_ssh_address("ssh://me@gpu-box:2222/digits") == SshDestination("me@gpu-box", 2222, "digits")
    assert parse_ssh_address("ssh://gpu-box") == SshDestination("gpu-box", None, None)


@pytest.mark.parametrize(
    "text", ["", "-oProxyCommand=touch x", "me@-oProxyCommand=x", "a b", "a;b", "@", "a/b"]
)
def test_what_ssh_would_read_as_something_else_is_refused(text: str) -> None:
    with pytest.raises(BadName):
        parse_ssh_address(ssh_address_of(text))
    with pytest.raises(BadName):
        parse_ssh_address(f"ssh://{text}/run" if text != "a/b" else "ssh:///run")


def test_two_runs_are_one_too_many() -> None:
    with pytest.raises(BadName, match="two runs are named, a and b"):
        ssh_address_of("box:a", "b")
    with pytest.raises(BadName, match="two runs are named, a and b"):
        ssh_address_of("ssh://box/a", "b")


def test_three_endpoints_are_behind_a_port() -> None:
    ports = {"qry": 7000, "ctl": 7001, "ev": 7002}
    assert endpoints_of("tcp://box:7000") == {name: f"tcp://box:{port}" for name, port in ports.items()}
    assert endpoints_of("tcp://[::1]:65533")["ev"] == "tcp://[::1]:65535"


@pytest.mark.parametrize("address", ["box:70", "tcp://box", "tcp://box:0", "tcp://box:65534", "tcp://a b:1"])
def test_address_without_three_ports_is_refused(address: str) -> None:
    with pytest.raises(BadName, match="is not an address; write tcp://HOST:PORT"):
        endpoints_of(address)


def test_key_is_part_of_a_tcp_address() -> None:
    assert with_key("tcp://box:7", "me") == "tcp://me@box:7"
    assert with_key("tcp://me@box:7", None) == with_key("tcp://me@box:7", "me") == "tcp://me@box:7"
    assert parse_tcp_address("tcp://me@box:7") == ("me", "box:7")
    assert parse_tcp_address("tcp://box:7") == (None, "box:7")
    with pytest.raises(BadName, match="is not an address"):
        with_key("digits", "me")


def test_options_and_run_are_one_address() -> None:
    assert run_address("digits", ssh=None, key=None) == "digits"
    assert run_address(None, ssh=None, key=None) is None
    assert run_address("digits", ssh="me@box", key=None) == "ssh://me@box/digits"
    assert run_address("tcp://box:7", ssh=None, key="me") == "tcp://me@box:7"


def test_remote_address_is_refused_where_files_are_written() -> None:
    assert not is_remote_address(None)
    require_local("digits", "export")
    with pytest.raises(RunNotFound, match="run it on that machine, `esper-daemon export`"):
        require_local("ssh://box/digits", "export")
