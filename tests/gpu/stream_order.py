"""What happens before what on a CUDA device: streams, events, and who touches which memory.

Each stream has a clock, and so has the host; an event is a copy of one, and who waits for it takes it over
(vector clocks: Mattern, "Virtual Time and Global States of Distributed Systems", 1989). Two operations that
touch the same bytes, one of them writing, must be ordered by these clocks, whatever the order in which they
were issued. Memory goes back to the stream that it was allocated on: what other streams do with it must be
done before that stream issues its next operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Clock = dict[int, int]
"""By number of an agent (the host is 0) how many of its operations are known to be done."""
HOST = 0
MAX_RACES = 20
"""That are kept of a section."""


def _join(clock: Clock, other: Clock) -> None:
    for agent, count in other.items():
        if clock.get(agent, 0) < count:
            clock[agent] = count


class Stream:
    """Stands for torch.cuda.Stream."""

    def __init__(self, order: StreamOrder, device: Any = None, priority: int = 0) -> None:
        self._order = order
        self.number = order.num_agents
        order.num_agents += 1
        self.device = order.device if device is None else device
        self.clock: Clock = {}

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        if self._order.heeds_waits:
            _join(self.clock, event.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self._order)
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _join(self._order.host, self.clock)
        self._order.on_wait()


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, order: StreamOrder, **_: bool) -> None:
        self._order = order
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._order.current
        _join(stream.clock, self._order.host)
        self.clock = dict(stream.clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._order.current).wait_event(self)

    def query(self) -> bool:
        """Whether it has passed: always, and who asks knows it from now on."""
        _join(self._order.host, self.clock)
        return True

    def synchronize(self) -> None:
        _join(self._order.host, self.clock)
        self._order.on_wait()

    def elapsed_time(self, end: Event) -> float:
        return 0.0


@dataclass(frozen=True)
class Access:
    """An operation that touched bytes."""

    agent: int
    count: int
    """Of the agent's operations, with it."""
    what: str


@dataclass
class _Memory:
    storage: StorageWeakRef
    owner: Stream | None
    """Whose allocator it belongs to; None = the host's."""
    reads: dict[tuple[int, int, int], Access] = field(default_factory=dict)
    """By first byte, end and agent the last one."""
    writes: dict[tuple[int, int, int], Access] = field(default_factory=dict)


@dataclass(frozen=True)
class Touched:
    """Bytes of a tensor that an operation reads or writes."""

    memory: _Memory
    begin: int
    end: int
    is_written: bool


@dataclass
class Span:
    """Operations of a stream from one point of the program to another.

    Attributes:
        began: what is known to be done when the first of them begins.
        last: number of the last of them.
    """

    stream: Stream
    began: Clock | None = None
    last: int = 0

    def ends_before(self, other: Span) -> bool:
        """Whether all of it is known to be done where the other begins."""
        assert other.began is not None, "nothing was issued"
        return other.began.get(self.stream.number, 0) >= self.last > 0


def may_overlap(a: Span, b: Span) -> bool:
    """Whether neither waits for the end of the other."""
    return not a.ends_before(b) and not b.ends_before(a)


class StreamOrder:
    """Clocks of the host and of all streams, and the accesses that they do not order.

    Attributes:
        current: the stream that operations are issued on.
        section: of the program.
        races: by section what was found, in words.
        on_wait: called when the host waits for a stream or an event.
        spans: by name, see `span`.
        heeds_waits: False = streams do not wait for events: a fault, for tests.
        keeps_sources: False = a transfer frees what it copies before it has arrived: likewise.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.num_agents = 1
        self.host: Clock = {HOST: 0}
        self.default = self.current = Stream(self)
        self.section = "start"
        self.races: dict[str, list[str]] = {}
        self.on_wait: Callable[[], None] = lambda: None
        self.spans: dict[str, Span] = {}
        self.heeds_waits = self.keeps_sources = True
        self._open: list[Span] = []
        self._memories: dict[int, _Memory] = {}
        self._foreign: dict[int, _Memory] = {}
        """Memory that other streams than its owner have touched."""
        self._captured: dict[tuple[int, int, int, bool], Touched] | None = None

    def make_stream(self, device: Any = None, priority: int = 0) -> Stream:
        return Stream(self, device, priority)

    def make_event(self, **options: bool) -> Event:
        return Event(self, **options)

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Stands for torch.cuda.stream."""
        before, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def span(self, name: str, stream: Stream | None = None) -> Iterator[None]:
        """What the body issues on a stream, by default the current one, is kept under this name."""
        opened = self.spans[name] = Span(stream or self.current)
        self._open.append(opened)
        yield
        self._open.remove(opened)

    def touched(self, tensor: Tensor, *, is_written: bool) -> Touched:
        """The bytes of a tensor, and whose they are."""
        size = tensor.element_size()
        begin = tensor.storage_offset() * size
        extent = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        return Touched(self.memory(tensor), begin, begin + extent * size * (tensor.numel() > 0), is_written)

    def memory(self, tensor: Tensor) -> _Memory:
        """What is known of a tensor's memory; allocated now where it was never seen."""
        storage = tensor.untyped_storage()
        found = self._memories.get(storage._cdata)
        if found is None:
            owner = None if tensor.device.type == "cpu" else self.current
            found = self._memories[storage._cdata] = _Memory(StorageWeakRef(storage), owner)
            if len(self._memories) % 4096 == 0:
                self._forget()
        return found

    def is_known(self, tensor: Tensor) -> bool:
        """Whether an operation of the device has touched its memory."""
        return tensor.untyped_storage()._cdata in self._memories

    def issue(self, what: str, touched: Sequence[Touched]) -> None:
        """An operation on the current stream."""
        if self._captured is not None:
            for part in touched:
                key = (id(part.memory), part.begin, part.end, part.is_written)
                self._captured.setdefault(key, part)
            return
        stream = self.current
        _join(stream.clock, self.host)
        self._check_reuse(stream)
        for span in self._open:
            if span.stream is stream and span.began is None:
                span.began = dict(stream.clock)
        count = stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
        for span in self._open:
            if span.stream is stream:
                span.last = count
        access = Access(stream.number, count, what)
        for part in touched:
            self._touch(part, access, stream.clock)
            if part.memory.owner is not None and part.memory.owner is not stream:
                self._foreign[id(part.memory)] = part.memory

    def issue_on_host(self, what: str, touched: Sequence[Touched]) -> None:
        """The host itself reads or writes its memory."""
        if not touched:
            return
        self.host[HOST] += 1
        for part in touched:
            self._touch(part, Access(HOST, self.host[HOST], what), self.host)

    def read_on_host(self, tensor: Tensor) -> None:
        """The host reads a tensor, of which the device has perhaps written."""
        if self.is_known(tensor):
            self.issue_on_host("the host", [self.touched(tensor, is_written=False)])

    def wait_here(self) -> None:
        """The host waits for the current stream, as a copy that blocks does."""
        _join(self.host, self.current.clock)

    @contextmanager
    def capture(self) -> Iterator[list[Touched]]:
        """What the body issues is not executed: the list holds afterwards what a replay touches."""
        captured, self._captured = self._captured, {}
        kept: list[Touched] = []
        try:
            yield kept
            kept += [part for part in self._captured.values() if not part.memory.storage.expired()]
        finally:
            self._captured = captured

    def _touch(self, part: Touched, access: Access, clock: Clock) -> None:
        memory, place = part.memory, (part.begin, part.end, access.agent)
        others = [memory.writes, memory.reads] if part.is_written else [memory.writes]
        verb = "writes" if part.is_written else "reads"
        for accesses in others:
            other_verb = "writes" if accesses is memory.writes else "reads"
            for (begin, end, _), other in list(accesses.items()):
                if begin < part.end and part.begin < end and not _is_known(other, clock):
                    self._tell(f"{access.what} {verb} what {other.what} {other_verb}: nothing orders them")
        if part.is_written:  # what comes after this write comes after all that it came after
            for accesses in others:
                for key, other in list(accesses.items()):
                    if part.begin <= key[0] and key[1] <= part.end and _is_known(other, clock):
                        del accesses[key]
            memory.writes[place] = access
        else:
            memory.reads[place] = access

    def _check_reuse(self, stream: Stream) -> None:
        """Memory of this stream that was freed may be allocated again from now on."""
        for key, memory in list(self._foreign.items()):
            if memory.owner is not stream or not memory.storage.expired():
                continue
            del self._foreign[key]
            for other in (*memory.reads.values(), *memory.writes.values()):
                if not _is_known(other, stream.clock):
                    self._tell(f"the memory of {other.what} is free for others before it is done")

    def _tell(self, race: str) -> None:
        found = self.races.setdefault(self.section, [])
        if len(found) < MAX_RACES and race not in found:
            found.append(race)

    def _forget(self) -> None:
        """What was freed, and no other stream has touched, is of no interest any more."""
        gone = [
            key
            for key, memory in self._memories.items()
            if memory.storage.expired() and id(memory) not in self._foreign
        ]
        for key in gone:
            del self._memories[key]


def _is_known(access: Access, clock: Clock) -> bool:
    return clock.get(access.agent, 0) >= access.count
