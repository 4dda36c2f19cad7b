"""`esper-daemon keys`: who may connect to gateways of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.errors import KeysUnusable
from esper_overwatch.protocol.messages.roles import ROLES, Role
from esper_overwatch.protocol.storage.folders import config_folder
from esper_overwatch.protocol.storage.keys import (
    AllowList,
    client_path,
    make_client,
    read_secret,
    server_pair,
)

from .output import print_json, print_lines

_ROLE = click.Choice(ROLES)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def keys() -> None:
    """Keys for gateways (`esper-daemon gateway --listen tcp://HOST:PORT`).

    A viewer may watch, an operator may steer as well, an admin may do everything. Over ssh no keys
    are needed.
    """


@keys.command()
@click.argument("name")
@click.option("--role", type=_ROLE, help="Authorize it on this machine.")
@click.option("--server", metavar="PUBLIC", help="It is for another machine, whose public key this is.")
def new(name: str, role: Role | None, server: str | None) -> None:
    """Make a client's key NAME."""
    if server is not None and role is not None:
        raise click.UsageError("a role is given where the server is: --role or --server, not both")
    if server is None and role is None:
        raise click.UsageError("give --role ROLE (for this machine) or --server PUBLIC (for another one)")
    pair = make_client(name, server=server, role=role)
    print_lines([str(client_path(name))])
    if role is None:
        print_lines([f"on that machine: esper-daemon keys authorize {name} '{pair.public}' --role ROLE"])
    else:
        print_lines([f"{name} is {role} here; move the file to the same place on the client's machine"])


@keys.command()
@click.argument("name")
@click.argument("public", required=False)
@click.option("--role", type=_ROLE, required=True)
def authorize(name: str, public: str | None, role: Role) -> None:
    """Authorize NAME, or change its role; running gateways follow at once."""
    allowed = AllowList()
    known = next((one.public for one in allowed.clients.values() if one.name == name), None)
    if public is None and known is None:
        raise click.UsageError(f"{name} is not known here; give its PUBLIC key, too")
    allowed.authorize(name, public or known or "", role)
    print_lines([f"{name} is {role} here"])


@keys.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke NAME; its live connections are refused at once."""
    if AllowList().revoke(name) is None:
        raise KeysUnusable(f"{name} is not authorized here; `esper-daemon keys list` shows who is")
    print_lines([f"{name} may connect no longer"])


@keys.command("list")
@_JSON
def list_command(as_json: bool) -> None:
    """This machine's public key, who is authorized, and the keys for other machines."""
    found = _listed()
    if as_json:
        print_json(found)
        return
    print_lines([f"server key  {found['server'] or 'none yet; keys new NAME --role ROLE makes it'}"])
    for row in found["authorized"]:
        print_lines([f"{row['role']:<10}  {row['public']}  {row['name']}"])
    for row in found["keys"]:
        print_lines([f"own key     {row['public'] or row['problem']}  {row['name']}"])
    for problem in found["problems"]:
        print_lines([problem], to_stderr=True)


def _listed() -> dict[str, Any]:
    allowed = AllowList()
    server = server_pair().public if (config_folder() / "server.key").exists() else None
    return {
        "server": server,
        "authorized": [
            {"name": one.name, "role": one.role, "public": one.public} for one in allowed.clients.values()
        ],
        "keys": [_own(path) for path in sorted((config_folder() / "keys").glob("*.key"))],
        "problems": allowed.problems,
    }


def _own(path: Path) -> dict[str, str | None]:
    try:
        return {"name": path.stem, "public": read_secret(path).public, "problem": None}
    except KeysUnusable as error:
        return {"name": path.stem, "public": None, "problem": str(error)}
