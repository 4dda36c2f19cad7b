"""The processes that train one run together: a single one, or the ranks that torchrun started.

Envs are split over the ranks in order of their index. Every rank holds the same policy: it computes its share
of each minibatch's gradient, the shares are added up, and all take the same step. Rank 0 alone has the
journal, the sockets and the checkpoints; at each boundary it sends the others an order for what comes next.

Tensors travel over gloo on a CPU and NCCL between GPUs (torch.distributed); messages always over gloo.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from esper_overwatch.protocol.errors import EsperError, first_line
from esper_overwatch.trainer.config.schema import Config

from .roll_call import Arrival, RollCall, record_home, take_roll_call

RANK_TIMEOUT = timedelta(minutes=10)
"""Time that a rank may keep the others waiting before it counts as lost."""
BACKENDS = ("gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl")
"""Backends of torch.distributed; all machines use the first of those that they choose."""
MAX_HOSTS_NAMED = 4
"""Hosts named in an error that cannot identify the machine."""


class RankLostError(EsperError):
    """A rank has exited, hangs or has failed; what it held of this episode is lost."""

    exit_code = 11


class RanksError(EsperError):
    """The ranks cannot train this run together."""

    exit_code = 9


class ProcessGroup:
    """One of K processes.

    Args:
        rank: which, from 0.
        size: K.

    Attributes:
        local_rank: which of those on this machine; the index of its GPU.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._places: list[tuple[str, int]] = []
        self._lost = False
        self._store: Store | None = None
        self._roll: RollCall | None = None

    @classmethod
    def join(cls, progress: Sequence[int] = ()) -> ProcessGroup:
        """The group that torchrun describes in the environment, or this process alone.

        Ranks are torchrun's, counted from the first on the machine whose copy of the run has come furthest:
        rank 0 stays where journal and checkpoints are, wherever torchrun puts its own after a restart.

        Args:
            progress: how far this machine's copy has come, to compare with others'; empty where it has none.

        Raises:
            RankLostError: the others did not come.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        group = cls(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
        backend = choose_backend(torch.cuda.device_count() if torch.cuda.is_available() else 0, os.environ)
        arrival = Arrival(uuid.uuid4().hex, socket.gethostname(), os.getpid(), backend, list(progress))
        with group._collective_guard():
            group._join(arrival)
        return group

    def _join(self, arrival: Arrival) -> None:
        store, rank, _ = next(rendezvous("env://", timeout=RANK_TIMEOUT))
        try:
            roll = take_roll_call(store, rank, self.size, arrival, RANK_TIMEOUT)
        except TimeoutError as error:
            raise RankLostError(str(error)) from None
        self._store, self._roll = store, roll
        if self.size == 1:
            return
        self.rank = (rank - roll.first) % self.size
        arrivals = [*roll.arrivals[roll.first :], *roll.arrivals[: roll.first]]
        self._places = [(each.host, each.pid) for each in arrivals]
        dist.init_process_group(
            min((each.backend for each in arrivals), key=BACKENDS.index),
            store=PrefixStore(roll.number, store),
            rank=self.rank,
            world_size=self.size,
            timeout=RANK_TIMEOUT,
        )
        atexit.register(self.leave)
        self.barrier_or_raise()  # who fails from here on is missed by all

    def leave(self) -> None:
        """End what torch runs for the group; at the process's exit this is done by itself.

        A thread of gloo may hold the tensors of the last exchange for longer than it takes to end the
        interpreter, whose lock it then asks for: that aborts the process (pytorch/pytorch#179291).
        """
        if not dist.is_initialized():
            return
        if self._lost and "nccl" in dist.get_backend_config():
            return  # it would wait for the lost rank
        dist.destroy_process_group()

    @property
    def restarted(self) -> bool:
        """True if torchrun has started these processes after others: a rank had failed, or a machine
        joined."""
        attempts = 0 if self._roll is None else self._roll.attempt - 1
        return attempts + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    @property
    def recorded_home(self) -> str:
        """Home folder in which an earlier attempt keeps the run; empty where none has begun to train it."""
        return "" if self._roll is None else self._roll.home

    def record_home(self, home: str) -> None:
        """Rank 0: tell later attempts where the run is kept."""
        if self._store is not None:
            record_home(self._store, home)

    def rows(self, n: int, rank: int | None = None) -> range:
        """Range of n envs that are this rank's, or another's; n is a multiple of the number of ranks."""
        share = n // self.size
        first = (self.rank if rank is None else rank) * share
        return range(first, first + share)

    def check_split(self, config: Config) -> None:
        """Raise RanksError where envs, minibatches or devices cannot be split over the ranks."""
        if ":" in config.device and int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) > 1:
            raise RanksError(
                f"device = {config.device}: is one device for several ranks; device = cuda or auto gives "
                "each rank a device of its own"
            )
        hosts = config.evaluation.hosts
        if config.evaluation.rounds and hosts % self.size:
            raise RanksError(f"evaluation.hosts = {hosts}: {self.size} ranks need a multiple of {self.size}")
        envs = config.envs.count
        parts = config.ppo.minibatches if config.policy.kind == "ppo" else 1
        if envs % self.size or self.size * parts > envs:
            raise RanksError(
                f"envs.count = {envs}: {self.size} ranks need a multiple of {self.size}, and at least "
                f"{self.size * parts} for {parts} minibatches"
            )

    def barrier_or_raise(self, problem: str = "") -> None:
        """Wait until every rank is ready.

        Args:
            problem: why this one is not.

        Raises:
            RanksError: another one is not.
        """
        for rank, text in enumerate(self.all_gather_bytes(problem.encode())):
            if text and rank != self.rank:
                raise RanksError(f"rank {rank}: {text.decode()}")

    def all_reduce_(self, tensor: Tensor) -> None:
        """Add up the ranks' tensors, in place."""
        if self.size > 1:
            with self._collective_guard():
                dist.all_reduce(tensor)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The ranks' tensors side by side along `dim`, on every rank."""
        if self.size == 1:
            return tensor
        sent = tensor.contiguous()
        if tensor.dtype == torch.bool:
            sent = sent.view(torch.uint8)
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with self._collective_guard():
            dist.all_gather(parts, sent)
        return torch.cat(parts, dim=dim).view(tensor.dtype)

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        """Every rank's message, on every rank, in the order of ranks."""
        if self.size == 1:
            return [message]
        sizes = self.all_gather(torch.tensor([len(message)]), 0)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: len(message)] = _tensor(message)
        rows = self.all_gather(padded.unsqueeze(0), 0)
        return [bytes(row[:size].numpy()) for row, size in zip(rows, sizes.tolist(), strict=True)]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Every rank's message on rank 0, in the order of ranks; the others wait for no answer and get []."""
        if self.size == 1:
            return [message]
        size = torch.tensor([len(message)])
        if self.rank > 0:
            with self._collective_guard():
                dist.send(size, dst=0)
                dist.send(_tensor(message), dst=0)
            return []
        sizes = [torch.empty_like(size) for _ in range(1, self.size)]
        self._receive(sizes)
        parts = [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
        self._receive(parts)
        return [message, *(bytes(part.numpy()) for part in parts)]

    def _receive(self, parts: Sequence[Tensor]) -> None:
        """Fill a tensor from each other rank, in the order of ranks; they come in any."""
        with self._collective_guard():
            for work in [dist.irecv(part, src=rank) for rank, part in enumerate(parts, 1)]:
                assert work is not None
                work.wait()

    def broadcast_order(self, order: bytes) -> None:
        """Rank 0: send the same message to all other ranks."""
        if self.size > 1:
            self._broadcast(order)

    def receive_order(self) -> bytes:
        """The other ranks: wait for the next message of rank 0."""
        return self._broadcast(b"")

    def scatter_bytes(self, messages: Sequence[bytes]) -> bytes:
        """Rank 0 gives one message to each rank; the others pass nothing. Returns this rank's."""
        if self.size == 1:
            return messages[0]
        lengths = self._broadcast(msgspec.json.encode([len(message) for message in messages]))
        sizes = msgspec.json.decode(lengths, type=list[int])
        if self.rank > 0:
            taken = torch.empty(sizes[self.rank], dtype=torch.uint8)
            with self._collective_guard():
                dist.recv(taken, src=0)
            return bytes(taken.numpy())
        for rank in range(1, self.size):
            with self._collective_guard():
                dist.send(_tensor(messages[rank]), dst=rank)
        return messages[0]

    def _broadcast(self, message: bytes) -> bytes:
        size = torch.tensor([len(message)])
        with self._collective_guard():
            dist.broadcast(size, src=0)
            data = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == 0:
                data.copy_(_tensor(message))
            dist.broadcast(data, src=0)
        return bytes(data.numpy())

    def dead_processes(self) -> list[tuple[int, int]]:
        """(rank, pid) of the processes of this machine that have ended; waits up to 2 s for one to end."""
        here = socket.gethostname()
        near = [(rank, pid) for rank, (host, pid) in enumerate(self._places) if host == here]
        for _ in range(20):
            gone = [(rank, pid) for rank, pid in near if not _alive(pid)]
            if gone:
                return gone
            time.sleep(0.1)
        return []

    def _find_lost(self, error: RuntimeError) -> str:
        """Find the lost rank, as far as can be seen from this machine."""
        gone = ", ".join(f"rank {rank} (pid {pid})" for rank, pid in self.dead_processes())
        if gone:
            return f"{gone} on {socket.gethostname()} is gone"
        far = sorted({host for host, _ in self._places} - {socket.gethostname()})
        where = f" on {' or '.join(far[:MAX_HOSTS_NAMED])}" if far else ""
        more = f" or {len(far) - MAX_HOSTS_NAMED} other machines" if len(far) > MAX_HOSTS_NAMED else ""
        return f"a rank{where}{more} does not answer: {first_line(error)[:200]}"

    @contextmanager
    def _collective_guard(self) -> Iterator[None]:
        """Raise RankLostError where torch finds that the others do not answer."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._lost = True
            raise RankLostError(f"rank {self.rank} of {self.size}: {self._find_lost(error)}") from error


def choose_backend(devices: int, environ: MutableMapping[str, str]) -> str:
    """Choose the backend: NCCL, unless ranks of this machine share a GPU, which NCCL refuses.

    NCCL's waits are made blocking: else its watchdog aborts the process of a rank whose peer is lost, before
    the error can be reported.

    Args:
        devices: CUDA devices of this machine.
        environ: that of torchrun.
    """
    if devices == 0:
        return BACKENDS[0]
    if int(environ.get("LOCAL_WORLD_SIZE", "1")) > devices:
        return BACKENDS[1]
    environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    return BACKENDS[2]


def _tensor(message: bytes) -> Tensor:
    """uint8 [bytes]; torch itself refuses to make one of no bytes."""
    return (
        torch.frombuffer(bytearray(message), dtype=torch.uint8)
        if message
        else torch.empty(0, dtype=torch.uint8)
    )


def _alive(pid: int) -> bool:
    """True if a process runs; one that has ended but is not waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
    except OSError:
        return True
