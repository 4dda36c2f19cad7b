"""What there is for a process is what its control groups leave it of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from esper_overwatch.protocol.machine.cgroup import cpu_quota, granted_cores, memory

MIB = 2**20


def write(folder: Path, **files: object) -> None:
    """Files of a group, `memory_max=3` for one named memory.max."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def groups(tmp_path: Path, membership: str) -> tuple[Path, Path]:
    (tmp_path / "membership").write_text(membership)
    return tmp_path / "fs", tmp_path / "membership"


def second(folder: Path, limit: object) -> None:
    """A group of version 2 that uses 2 MiB beside the cache."""
    write(
        folder,
        memory_max=limit,
        memory_current=3 * MIB,
        memory_stat=f"anon 100\ninactive_file {MIB}",
    )


def first(folder: Path, limit: object) -> None:
    """The same of version 1."""
    write(
        folder,
        memory_limit_in_bytes=limit,
        memory_usage_in_bytes=3 * MIB,
        memory_stat=f"inactive_file 5\ntotal_inactive_file {MIB}",
    )


def test_a_cgroups_limit_is_the_memory_there_is(tmp_path: Path) -> None:
    second(tmp_path / "fs/job/step", 4 * MIB)
    assert memory(*groups(tmp_path, "0::/job/step\n")) == (4 * MIB, 2 * MIB)


def test_limit_of_a_group_around_holds(tmp_path: Path) -> None:
    second(tmp_path / "fs/job/step", "max")
    second(tmp_path / "fs/job", 4 * MIB)
    assert memory(*groups(tmp_path, "0::/job/step\n")) == (4 * MIB, 2 * MIB)


@pytest.mark.parametrize("path", ["/docker/4f2a", "/../4f2a", "/"])
@pytest.mark.parametrize("version", [1, 2])
def test_container_may_show_paths_of_its_host(tmp_path: Path, version: int, path: str) -> None:
    (second if version == 2 else first)(tmp_path / ("fs" if version == 2 else "fs/memory"), 4 * MIB)
    membership = {1: f"9:cpu,cpuacct:/\n4:memory:{path}\n0::/\n", 2: f"0::{path}\n"}[version]
    assert memory(*groups(tmp_path, membership)) == (4 * MIB, 2 * MIB)


@pytest.mark.parametrize("limit", ["max", 2**60])
def test_a_limit_above_the_machine_is_none(tmp_path: Path, limit: object) -> None:
    second(tmp_path / "fs", limit)
    first(tmp_path / "fs/memory", 2**63 - 4096)
    assert memory(*groups(tmp_path, "4:memory:/\n0::/\n"))[0] == psutil.virtual_memory().total


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    total, used = memory(tmp_path, tmp_path / "none")
    assert total == psutil.virtual_memory().total
    assert 0 < used < total
    assert granted_cores(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("version", [1, 2])
def test_quota_is_the_processors_there_are(tmp_path: Path, version: int) -> None:
    if version == 2:
        write(tmp_path / "fs/job", cpu_max="50000 100000")
        write(tmp_path / "fs/job/step", cpu_max="max 100000")
        where = groups(tmp_path, "0::/job/step\n")
    else:
        write(tmp_path / "fs/cpu,cpuacct", cpu_cfs_quota_us=50000, cpu_cfs_period_us=100000)
        where = groups(tmp_path, "9:cpu,cpuacct:/job\n")
    assert cpu_quota(*where) == 0.5
    assert granted_cores(*where) == 1


def test_no_quota_grants_all_cores(tmp_path: Path) -> None:
    write(tmp_path / "fs/cpu", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    where = groups(tmp_path, "3:cpu:/\n")
    assert cpu_quota(*where) is None
    assert granted_cores(*where) == len(os.sched_getaffinity(0))
