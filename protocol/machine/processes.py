"""What other processes of this machine do, for messages about them."""

from __future__ import annotations

from collections.abc import Collection

import psutil


def is_stopped(pid: int | None) -> bool:
    """True while the process of that number is stopped, by SIGSTOP or Ctrl-Z: it answers nobody."""
    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def describe_stop(pid: int | None) -> str:
    """What lets a daemon that `is_stopped` go on, for a message about its silence; empty if it is not."""
    return f"it is stopped; kill -CONT {pid} lets it go on" if is_stopped(pid) else ""


def describe_holders(ports: Collection[int]) -> str:
    """Name the user's processes that listen on these TCP ports, for the end of a message; empty if none does.

    Often it is a worker of a daemon that was killed.
    """
    try:
        found = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr.port in ports
        }
    except psutil.Error:
        return ""
    return "; held by process " + ", ".join(map(str, sorted(found))) if found else ""
