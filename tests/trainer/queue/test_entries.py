"""The queue's rows against a list, and what each refusal says."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from esper_overwatch.protocol.errors import FolderError, NameTaken, RunNotFound
from esper_overwatch.trainer.queue.entries import Entry, EntryQueue, NotWaiting, QueueDamaged
from esper_overwatch.trainer.queue.runner import QueueRunner


class QueueMachine(RuleBasedStateMachine):
    """Waiting entries by their order; one device."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.queue = EntryQueue(self.folder.name)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.ended: dict[int, str] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    def entry(self, number: int) -> Entry:
        return self.queue.find(str(number))

    @rule(first=st.booleans())
    def add(self, first: bool) -> None:
        count = len(self.waiting) + len(self.running) + len(self.ended)
        entry = self.queue.add(f"run-{count}", ["start", f"run-{count}"], Path("/"), {}, first=first)
        assert entry.number == count + 1, "no number is given twice"
        self.waiting.insert(0 if first else len(self.waiting), entry.number)

    @rule(data=st.data(), place=st.integers(1, 9))
    def move(self, data: st.DataObject, place: int) -> None:
        if self.waiting:
            number = data.draw(st.sampled_from(self.waiting))
            self.queue.move(self.entry(number), place)
            self.waiting.remove(number)
            self.waiting.insert(place - 1, number)

    @rule()
    def take(self) -> None:
        taken = self.queue.take(None)
        assert (taken and taken.number) == (self.waiting[0] if self.waiting else None)
        if taken is not None:
            self.running.append(self.waiting.pop(0))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if everything := [*self.waiting, *self.running]:
            number = data.draw(st.sampled_from(everything))
            self.queue.cancel(self.entry(number))
            if number in self.waiting:
                self.waiting.remove(number)
                self.ended[number] = "cancelled"
            assert self.entry(number).is_cancelled

    @rule(data=st.data(), ends=st.booleans())
    def leave(self, data: st.DataObject, ends: bool) -> None:
        if self.running:
            number = data.draw(st.sampled_from(self.running))
            self.running.remove(number)
            if ends:
                self.queue.end(self.entry(number), "done", 0)
                self.ended[number] = "done"
                return
            self.queue.put_back(self.entry(number))
            self.waiting = sorted([*self.waiting, number], key=lambda one: (self.entry(one).place, one))

    @invariant()
    def rows_are_as_expected(self) -> None:
        found = self.queue.entries()
        assert [entry.number for entry in found if entry.state == "waiting"] == self.waiting
        assert {entry.number for entry in found if entry.state == "running"} == set(self.running)
        assert {entry.number: entry.state for entry in found if entry.ended is not None} == self.ended


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


def test_device_of_an_interrupted_entry_is_kept(tmp_path: Path) -> None:
    queue = EntryQueue(tmp_path)
    queue.add("a", ["start", "a"], tmp_path, {}, first=False)
    taken = queue.take("cuda:1")
    assert taken is not None
    queue.put_back(taken)
    assert queue.take("cuda:0") is None
    queue.free_devices(["cuda:1", "cuda:0"])
    assert queue.take("cuda:0") is None, "its device is there"
    queue.free_devices(["cuda:0"])
    again = queue.take("cuda:0")
    assert again is not None
    assert (again.device, again.begun) == ("cuda:0", taken.begun)


def test_entry_waits_until_it_is_due(tmp_path: Path) -> None:
    queue = EntryQueue(tmp_path)
    queue.add("a", ["start", "a"], tmp_path, {}, first=False)
    queue.add("b", ["start", "b"], tmp_path, {}, first=False)
    first = queue.take(None)
    assert first is not None
    queue.put_back(first, failures=2, seconds=60.0, reason="signal 9")
    later = queue.take(None)
    assert later is not None
    assert later.name == "b", "who is due goes before who is not"
    assert queue.take(None) is None
    assert (queue.find("a").failures, queue.find("a").reason) == (2, "signal 9")


def test_entry_waits_for_no_clock_that_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = EntryQueue(tmp_path)
    queue.add("a", ["start", "a"], tmp_path, {}, first=False)
    taken = queue.take(None)
    assert taken is not None
    queue.put_back(taken, failures=1, seconds=5.0)
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() - 3_600 * 10**9)
    assert queue.take(None) is not None


def test_refusals_name_what_is_wrong(tmp_path: Path) -> None:
    queue = EntryQueue(tmp_path)
    queue.add("a", ["start", "a"], tmp_path, {}, first=False)
    with pytest.raises(NameTaken, match="entry 1 of the queue is a already"):
        queue.add("a", ["start", "a"], tmp_path, {}, first=False)
    with pytest.raises(RunNotFound, match="no entry of the queue is 7"):
        queue.find("7")
    taken = queue.take(None)
    assert taken is not None
    with pytest.raises(NotWaiting, match=r"entry 1 \(a\) does not wait"):
        queue.move(taken, 1)
    (tmp_path / "queue.db").write_bytes(b"no database" * 500)
    with pytest.raises(QueueDamaged, match="move it away"):
        queue.entries()


ADDS = """
import sys
from pathlib import Path
from esper_overwatch.trainer.queue.entries import EntryQueue
queue = EntryQueue(sys.argv[1])
for i in range(int(sys.argv[2]), 10**6):
    entry = queue.add(f"r-{i}", ["start", f"r-{i}"], Path("/"), {}, first=i % 2 == 0)
    print(i, flush=True)
    if i % 3 == 0:
        queue.move(entry, 1)
"""


def test_no_kill_loses_or_doubles_an_entry(tmp_path: Path) -> None:
    said = -1
    for _ in range(4):
        command = [sys.executable, "-c", ADDS, str(tmp_path), str(said + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            for _ in range(5):
                said = int(child.stdout.readline())
            time.sleep(0.003 * (said % 5))
            child.send_signal(signal.SIGKILL)
            said = max([said, *(int(line) for line in child.stdout.read().split())])
        entries = EntryQueue(tmp_path).entries()
        names = {entry.name for entry in entries}
        assert len(names) == len(entries), "nothing is there twice"
        assert names >= {f"r-{i}" for i in range(said + 1)}, "nothing that was said is lost"
        said = max(int(name[2:]) for name in names)
        assert len({entry.place for entry in entries}) == len(entries)


def test_a_lock_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    queue = EntryQueue(tmp_path)
    queue.lock_file.symlink_to("elsewhere")
    with pytest.raises(FolderError, match="cannot lock"):
        QueueRunner(queue, [None], print).run(stays=False)
