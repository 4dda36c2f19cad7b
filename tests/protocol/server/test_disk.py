"""A disk that fills up is told of in time, and one large file is not taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.disk import DiskWatch

MIB, GIB = 2**20, 2**30


def disk(reserve: int = 0) -> DiskWatch:
    return DiskWatch([].append, [].append, lambda: reserve)


def severities(judge: DiskWatch, free: list[int], seconds: float = 5.0) -> list[str | None]:
    found = [judge.judge(i * seconds, each) for i, each in enumerate(free)]
    return [None if one is None else one.severity for one in found]


def test_little_room_is_told_of_with_a_margin() -> None:
    free = [201 * MIB, 199 * MIB, 210 * MIB, 251 * MIB, 60 * MIB, 49 * MIB, 60 * MIB, 63 * MIB, 900 * MIB]
    expected = [None, "warning", "warning", None, "warning", "critical", "critical", "warning", None]
    assert severities(disk(), free) == expected


def test_next_checkpoint_needs_room_as_well() -> None:
    assert severities(disk(GIB), [GIB + 199 * MIB]) == ["warning"]


@pytest.mark.parametrize(("mib_per_second", "is_told"), [(1, False), (4, True)])
def test_disk_full_within_the_hour_is_told_of(mib_per_second: int, is_told: bool) -> None:
    free = [10 * GIB - i * 5 * mib_per_second * MIB for i in range(61)]
    judge = disk()
    found = severities(judge, free)
    assert not any(found[:24])
    assert (found[-1] == "warning") == is_told
    hint = getattr(judge.judge(305.0, free[-1]), "hint", "")
    assert ("full in" in hint) == is_told


def test_one_large_file_is_no_rate() -> None:
    before, after = [10 * GIB] * 40, [8 * GIB] * 80
    assert not any(severities(disk(), before + after))


def test_sample_is_published_before_its_anomaly() -> None:
    emitted = list[Any]()
    watch = DiskWatch(emitted.append, emitted.append)
    for free in (MIB, MIB, GIB):
        watch.take(
            ev.SystemSample(
                cpu_percent=1, rss=1, memory_total=2, memory_used=1, load1=0, cores=1, disk_free=free
            )
        )
    anomalies = [each for each in emitted if isinstance(each, ev.Anomaly)]
    assert isinstance(emitted[0], ev.SystemSample)
    assert [(a.source, a.kind, a.active) for a in anomalies] == [
        ("system", "disk", True),
        ("system", "disk", False),
    ]
