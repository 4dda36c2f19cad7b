"""What a run's threads are doing, as somebody outside sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from esper_overwatch import PublishedRun, connect
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.stack_profile import StackProfile, ThreadProfile, watch_stacks
from tests.protocol.harness import until

THIS = "tests/protocol/publishing/test_stack_profile.py"


def spin_until(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(1000))


@pytest.fixture
def threads() -> Iterator[None]:
    """One that works and one that waits."""
    ended = threading.Event()
    started = [
        threading.Thread(target=spin_until, args=(ended,), name="works"),
        threading.Thread(target=ended.wait, name="waits"),
    ]
    for thread in started:
        thread.start()
    yield
    ended.set()
    for thread in started:
        thread.join()


def named(profile: StackProfile, name: str) -> ThreadProfile:
    (found,) = (thread for thread in profile.threads.values() if thread.name == name)
    return found


def waits_for_answer(client: Client) -> bool:
    """Whether the main thread, which asks this, waits; on a busy machine it may be on its way there."""
    main = next(iter(client.stacks()))
    assert main["name"] == "MainThread"
    return bool(main["frames"][-1].endswith(" select"))


def watched(client: Client) -> StackProfile:
    """Some samples of two threads, of which one has had a core."""

    def look() -> StackProfile | None:
        profile = watch_stacks(client, 1.0)
        works, waits = named(profile, "works"), named(profile, "waits")
        is_told = works.root.count > 1 and profile.busy_share(works) > profile.busy_share(waits)
        return profile if is_told else None

    found = until(look)
    assert isinstance(found, StackProfile)
    return found


@pytest.mark.usefixtures("threads")
def test_each_thread_shows_what_it_does(run: PublishedRun) -> None:
    with connect(run.name) as client:
        profile = watched(client)
        until(lambda: waits_for_answer(client))
    works, waits = named(profile, "works"), named(profile, "waits")
    assert works.root.count == waits.root.count
    lines = list(profile.tree())
    at = next(i for i, line in enumerate(lines) if line.startswith("works: "))
    assert lines[at + 1].startswith(" 100%  spin_until ")
    assert THIS in lines[at + 1]
    folded = [line for line in profile.folded() if line.startswith("works;")]
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == works.root.count
    assert all(f";spin_until ({THIS})" in line for line in folded)


def test_shares_are_of_the_samples_and_chains_are_short() -> None:
    profile = StackProfile(seconds=2.0)
    for i in range(10):
        frames = ["a.py:1 outer", "a.py:5 middle", f"b.py:{7 + i % 2} {'left' if i < 7 else 'right'}"]
        if i == 0:
            frames.append("<frozen os>:3 deep")
        stack = {"id": 1, "name": "t", "cpu_us": 100_000 * i, "frames": frames}
        profile.add([stack, {"id": 2, "name": "t", "cpu_us": 5, "frames": ["a.py:9 rest"]}])
    assert list(profile.tree(min_share=0.2)) == [
        "t: 45% of a core, 10 samples",
        " 100%  middle (a.py:5)",
        "  70%   left (b.py:7)",
        "  30%   right (b.py:8)",
        "t: 0% of a core, 10 samples",
        " 100%  rest (a.py:9)",
    ]
    assert list(profile.folded()) == [
        "t;outer (a.py);middle (a.py);left (b.py) 6",
        "t;outer (a.py);middle (a.py);left (b.py);deep (<frozen os>) 1",
        "t;outer (a.py);middle (a.py);right (b.py) 3",
        "t;rest (a.py) 10",
    ]
