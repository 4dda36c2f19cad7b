"""Measure cost and capacity of the wire: `python -m benchmarks.wire`.

A server with its journal and sockets runs as in the daemon, with one subscriber. The same `ppo.update` is
emitted in bursts between training steps. In the same run, in turn with it: sending from the same thread (the
JSON of orjson plus one ZeroMQ message), the standard library's `json.dumps(asdict(event))`, and one scalar of
TensorBoard's SummaryWriter, and of wandb (offline) and trackio where they are installed.

Also measured: a loop of torch training steps with 1,000 and 10,000 events a second against the same loop
without, the latter also with an event that has no fields per policy head; a ping, in turn with a bare ROUTER,
and a snapshot while such a loop runs; a snapshot on an idle server, in turn with a bare ROUTER that answers
with as many bytes, which is the cost of sockets and sleeping cores alone; the thread time of the I/O thread
per event, with the compiled writer of lines and without; and how many events a second go through an ipc
socket in batches.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import torch
import zmq

from esper_overwatch import Subscriber, connect
from esper_overwatch.protocol.codec import json_lines
from esper_overwatch.protocol.codec.frames import decode_batch, encode_batches
from esper_overwatch.protocol.codec.json_lines import MAX_BATCH_EVENTS, Encoder, encode_event
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages.events import Context, PPOUpdate
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.protocol.server.publisher import MAX_TICK_EVENTS, Publisher
from esper_overwatch.protocol.server.server import Server

from .report import finish

TICKS = 40
BATCHES = 400
ASK_EVERY_S = 0.011
"""Below the limit of a connection: a hundred requests a second, and as many at once."""
IN_A_ROW = 50
ASKER = """
import json, time
from pathlib import Path
import zmq
from esper_overwatch import connect
bare = zmq.Context().socket(zmq.DEALER)
bare.linger = 0
bare.connect("ipc://%(home)s/bare")
taken = []
with connect("bench", home=Path(%(home)r)) as run:
    for asked in range(1, %(count)d + 1):
        begin = time.perf_counter()
        %(question)s
        taken.append((time.perf_counter() - begin) * 1e3)
        if asked %% %(row)d == 0:
            time.sleep(%(row)d * %(pause)f)
print(json.dumps(taken))
"""
SNAPSHOT = "run.call('snapshot')"
BARE = "bare.send(b'?'); bare.recv_multipart(copy=False)"
PING_BYTES = 128
"""About as many as the answer to a ping has."""
SNAPSHOT_P99_MS = 1.0
SNAPSHOT_OVER_BARE = 1.2
"""The limit of a snapshot is the larger one: milliseconds, or a multiple of the bare ROUTER's p99."""
BURST = 50
BURSTS = 200
WINDOWS = 5
WINDOW_S = 0.25
PAIRS = 72
"""The median of 24 scatters by .015 on a shared machine."""


def update() -> PPOUpdate:
    """A realistic event of 29 fields: values with all their digits, one of them not measured."""
    heads = ("op", "slot", "blueprint", "style", "tempo", "target", "speed", "curve")
    value = random.Random(7).random
    return PPOUpdate(
        seconds=value(),
        policy_loss=-value(),
        value_loss=value(),
        entropy=value(),
        head_entropy={head: value() for head in heads},
        approx_kl=value(),
        clip_fraction=value(),
        ratio_min=value(),
        ratio_max=1 + value(),
        explained_variance=value(),
        grad_norm=value(),
        head_grad_norm={head: value() for head in heads},
        critic_grad_norm=value(),
        advantage_mean=value() * 1e-8,
        advantage_std=1.0,
        learning_rate=1e-3,
        entropy_coefficient=0.01,
        epochs=4,
        minibatches=2,
        early_stop=False,
        skipped_nonfinite=0,
        op_fraction={head: value() for head in heads},
        lstm_h_rms=value(),
        lstm_c_rms=value(),
        return_std=value(),
    )


def without_heads(event: PPOUpdate) -> PPOUpdate:
    """The event without its fields per policy head, as small as the one that the target was set for."""
    empty: dict[str, Any] = {name: {} for name, value in vars(event).items() if isinstance(value, dict)}
    return dataclasses.replace(event, **empty)


class Steps:
    """Training steps of a small network, like those of a PPO update."""

    def __init__(self) -> None:
        self._net = torch.nn.Sequential(
            torch.nn.Linear(64, 128),
            torch.nn.Tanh(),
            torch.nn.Linear(128, 128),
            torch.nn.Tanh(),
            torch.nn.Linear(128, 16),
        )
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-3)
        self._batch = torch.randn(256, 64)

    def step(self) -> None:
        """Forward, backward, update: about a millisecond."""
        self._optimizer.zero_grad()
        self._net(self._batch).square().mean().backward()
        self._optimizer.step()


def cost_ns(work: Callable[[PPOUpdate], object]) -> list[float]:
    """Nanoseconds of each call, in bursts between training steps.

    The steps fill the caches, as in a trainer: the first call of each burst is the tail of the distribution.
    """
    steps = Steps()
    event = update()
    clock = time.perf_counter_ns
    overhead = min(clock() * -1 + clock() for _ in range(1000))
    costs = []
    for _ in range(BURSTS):
        for _ in range(BURST):
            clock()  # so that the next call of it is warm, as those of `overhead` are
            begin = clock()
            work(event)
            costs.append(float(clock() - begin - overhead))
        steps.step()
    return costs


class Trainer:
    """A loop of training steps that emits between them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._steps = Steps()

    def steps_per_s(
        self, seconds: float, events_per_s: int, event: PPOUpdate, stop: threading.Event | None = None
    ) -> float:
        """Steps per second while the event is emitted `events_per_s` times a second between them."""
        emitted = steps = 0
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds and not (stop and stop.is_set()):
            self._steps.step()
            steps += 1
            while emitted < elapsed * events_per_s:
                self._server.emitter.emit(event)
                emitted += 1
        return steps / elapsed

    def ratio(self, events_per_s: int, event: PPOUpdate) -> float:
        """Steps with events over steps without; the median of paired windows in alternating order."""
        ratios = []
        for pair in range(PAIRS):
            order = (events_per_s, 0) if pair % 2 else (0, events_per_s)
            done = {rate: self.steps_per_s(WINDOW_S, rate, event) for rate in order}
            ratios.append(done[events_per_s] / done[0])
        return statistics.median(ratios)


def milliseconds(question: str, home: Path, count: int = 100 * WINDOWS, row: int = 1) -> list[float]:
    """Durations of `count` requests from another process, `row` at a time without a pause."""
    program = ASKER % {
        "question": question,
        "home": str(home),
        "count": count,
        "row": row,
        "pause": ASK_EVERY_S,
    }
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    taken: list[float] = json.loads(out)
    return taken


class Bare:
    """A ROUTER in a thread of its own that answers each message with `size` bytes."""

    def __init__(self, home: Path, size: int) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{home}/bare")
        self._reply = b"x" * size
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(50):
                identity, _ = self._socket.recv_multipart()
                self._socket.send_multipart([identity, b"{}", self._reply])
        self._socket.close(0)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def asked_alone(home: Path) -> dict[str, float]:
    """Snapshots in turn with as many bytes from a bare socket; then snapshots in a row."""
    with connect("bench", home=home) as run:
        size = sum(len(event.line) + 1 for event in run.snapshot())
    taken: dict[str, list[float]] = {"snapshot": [], "bare": []}
    with Bare(home, size):
        for _ in range(WINDOWS):
            taken["snapshot"] += milliseconds(SNAPSHOT, home, 100)
            taken["bare"] += milliseconds(BARE, home, 100)
    taken["snapshot_in_a_row"] = milliseconds(SNAPSHOT, home, row=IN_A_ROW)
    figures = {"snapshot_bytes": float(size)}
    for name, values in taken.items():
        figures |= {
            f"{name}_median_ms": statistics.median(values),
            f"{name}_p99_ms": p99(values),
            f"{name}_overall_p99_ms": worst(values),
        }
    limit = max(SNAPSHOT_P99_MS, SNAPSHOT_OVER_BARE * figures["bare_p99_ms"])
    return figures | {"snapshot_p99_over_limit": figures["snapshot_p99_ms"] / limit}


def io_us(folder: Path) -> dict[str, float]:
    """Microseconds of thread time that the I/O thread spends on an event: number, encode, write, batch.

    In turn with the compiled writer of lines, where it is installed, and without.
    """
    emitter = Emitter()
    publisher = Publisher(
        emitter, Journal(folder / "io.jsonl"), run="r", boot="b", send=lambda _: None, note=lambda *_: None
    )
    event = update()
    writers = {"io_us_per_event": vars(json_lines)["write_lines"], "io_us_per_event_in_python": None}
    costs: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(TICKS):
        for name, writer in writers.items():
            for _ in range(MAX_TICK_EVENTS):
                emitter.emit(event)
            with mock.patch.object(json_lines, "write_lines", writer):
                begin = time.thread_time()
                publisher.tick()
                costs[name].append((time.thread_time() - begin) / MAX_TICK_EVENTS * 1e6)
    return {name: statistics.median(values) for name, values in costs.items()}


def events_per_s(folder: Path) -> float:
    """Events per second through an ipc socket in full batches, headers and bodies checked by the receiver."""
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    for _ in range(MAX_BATCH_EVENTS):
        encoder.add(1, Context(), update())
    batches = encoder.take()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    sender.bind(f"ipc://{folder}/batches")
    receiver.connect(f"ipc://{folder}/batches")
    seen = 0

    def receive() -> None:
        nonlocal seen
        while seen < BATCHES * MAX_BATCH_EVENTS:
            _, header, body = receiver.recv_multipart()
            seen += len(decode_batch(header, body)[1])

    thread = threading.Thread(target=receive)
    begin = time.perf_counter()
    thread.start()
    sent = 0
    while sent < BATCHES * MAX_BATCH_EVENTS:
        for frames in encode_batches(batches, run="r", boot="b", ts=1, dropped=0):
            sender.send_multipart(frames)
        sent += MAX_BATCH_EVENTS
    thread.join()
    rate = seen / (time.perf_counter() - begin)
    context.destroy(linger=0)
    return rate


def others_ns(folder: Path) -> dict[str, float]:
    """Median cost of one scalar with other loggers, by name; only those that are installed."""
    costs = {}
    for name, begin in (("tensorboard", _tensorboard), ("wandb", _wandb), ("trackio", _trackio)):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed; left out")
            continue
        log, end = begin(folder)
        costs[f"{name}_median_ns"] = statistics.median(cost_ns(log))
        end()
    return costs


Logger = tuple[Callable[[PPOUpdate], object], Callable[[], object]]


def _tensorboard(folder: Path) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    return lambda event: writer.add_scalar("policy_loss", event.policy_loss, 1), writer.close


def _wandb(folder: Path) -> Logger:
    for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        os.environ[f"WANDB_{kind}_DIR"] = str(folder / "wandb")
    wandb = importlib.import_module("wandb")
    settings = wandb.Settings(silent=True, console="off")
    run = wandb.init(mode="offline", dir=str(folder), project="bench", settings=settings)
    return lambda event: run.log({"policy_loss": event.policy_loss}), run.finish


def _trackio(folder: Path) -> Logger:
    os.environ["TRACKIO_DIR"] = os.environ["HF_HOME"] = str(folder / "trackio")
    os.environ["HF_HUB_OFFLINE"], os.environ["GRADIO_ANALYTICS_ENABLED"] = "1", "False"
    trackio = importlib.import_module("trackio")
    trackio.init(project="bench")
    return lambda event: trackio.log({"policy_loss": event.policy_loss}), trackio.finish


def p99(values: list[float]) -> float:
    """Median of the 99th percentiles of consecutive windows, of which other processes disturb some."""
    size = len(values) // WINDOWS
    return statistics.median([worst(values[at : at + size]) for at in range(0, size * WINDOWS, size)])


def worst(values: list[float]) -> float:
    """99th percentile of all values."""
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="esper-", ignore_cleanup_errors=True) as folder:
        figures = measure(Path(folder))
    finish(
        "wire",
        figures,
        {
            "emit_median_ns": ("<=", 1_000),
            "emit_p99_ns": ("<=", 5_000),
            "send_over_emit": (">=", 4.0),
            "loop_ratio_1k": (">=", 0.98),
            "loop_ratio_10k": (">=", 0.95),
            "ping_p99_ms": ("<=", 5.0),
            "snapshot_p99_over_limit": ("<=", 1.0),
            "batched_events_per_s": (">=", 400_000),
        },
    )


def measure(home: Path) -> dict[str, float]:
    """All figures, measured in an empty private folder."""
    (home / "run").mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(home / "run")
    with RunFolder.claim("bench", home=home) as run:
        server = Server(run, hello={})
        server.start()
        subscriber = Subscriber("bench", home=home)
        while subscriber.state != "live":
            subscriber.drain()
            subscriber.wait(0.01)
        figures = emit_costs(server, home)
        figures |= io_us(home)
        figures["batched_events_per_s"] = events_per_s(home)
        trainer = Trainer(server)
        figures |= loop_ratios(trainer)
        figures |= asked_alone(home)
        figures |= asked_beside(trainer, home)
        subscriber.close()
        server.close()
    return {**figures, "load1": os.getloadavg()[0]}


def emit_costs(server: Server, home: Path) -> dict[str, float]:
    """The cost of emitting an event, in the same run as that of its alternatives."""
    publisher: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    publisher.bind(f"ipc://{home}/alone")
    gc.collect()
    emit = cost_ns(server.emitter.emit)
    send = cost_ns(lambda event: publisher.send_multipart([b"1/metric", orjson.dumps(event)]))
    standard = cost_ns(lambda event: json.dumps(dataclasses.asdict(event)))
    publisher.close(0)
    others = others_ns(home)
    emit_ns, send_ns, standard_ns = map(statistics.median, (emit, send, standard))
    print(f"emit {emit_ns:.0f} ns; orjson + send {send_ns:.0f} ns; json.dumps(asdict) {standard_ns:.0f} ns")
    return {
        **others,
        **{f"{name.removesuffix('_median_ns')}_over_emit": ns / emit_ns for name, ns in others.items()},
        "emit_median_ns": emit_ns,
        "emit_p99_ns": p99(emit),
        "emit_overall_p99_ns": worst(emit),
        "send_median_ns": send_ns,
        "stdlib_json_median_ns": standard_ns,
        "send_over_emit": send_ns / emit_ns,
    }


def loop_ratios(trainer: Trainer) -> dict[str, float]:
    """Throughput of a training loop with events over that without."""
    event, plain = update(), without_heads(update())
    return {
        "loop_ratio_10k_plain": trainer.ratio(10_000, plain),
        "loop_ratio_1k": trainer.ratio(1_000, event),
        "loop_ratio_10k": trainer.ratio(10_000, event),
        "event_bytes": float(len(encode_event(1, time.time_ns() // 1000, Context(), event))),
        "plain_event_bytes": float(len(encode_event(1, time.time_ns() // 1000, Context(), plain))),
    }


def asked_beside(trainer: Trainer, home: Path) -> dict[str, float]:
    """Pings, in turn with the bare ROUTER, and snapshots, beside a loop that emits 1,000 events a second."""
    stop = threading.Event()
    thread = threading.Thread(target=trainer.steps_per_s, args=(120.0, 1_000, update(), stop))
    thread.start()
    ping: list[float] = []
    bare: list[float] = []
    with Bare(home, PING_BYTES):
        for _ in range(WINDOWS):
            ping += milliseconds("run.ping()", home, 100)
            bare += milliseconds(BARE, home, 100)
    beside = milliseconds(SNAPSHOT, home)
    stop.set()
    thread.join()
    return {
        "ping_median_ms": statistics.median(ping),
        "ping_p99_ms": p99(ping),
        "ping_overall_p99_ms": worst(ping),
        "bare_beside_loop_median_ms": statistics.median(bare),
        "bare_beside_loop_p99_ms": p99(bare),
        "snapshot_beside_loop_median_ms": statistics.median(beside),
        "snapshot_beside_loop_p99_ms": p99(beside),
    }


if __name__ == "__main__":
    main()
