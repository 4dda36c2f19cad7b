"""What the wire costs and carries: `python -m benchmarks.wire`.

A server with its journal and sockets runs as in the daemon, with one subscriber. The same `ppo.update` is
emitted in bursts between training steps; beside it, in the same run and in turn, what the thread would pay to
send by itself (the JSON of orjson plus one ZeroMQ message, and the standard library's
`json.dumps(asdict(event))`) and one scalar of TensorBoard's SummaryWriter, and of wandb (offline) and trackio
where they are installed.

Also measured: a loop of torch training steps with 1,000 and 10,000 events a second against the same loop
without, the latter also with an update that tells nothing of single heads; a ping and a snapshot while such a
loop runs; a snapshot alone, in turn with a bare ROUTER that answers with as many bytes, which is what sockets
and sleeping cores cost by themselves; what the I/O thread spends on an event, in time of its own; and how
many events a second go through an ipc socket in batches.
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

import orjson
import torch
import zmq

from benchmarks.report import finish
from protocol import Subscriber, connect
from protocol.emitter import Emitter
from protocol.encoding import BATCH_EVENTS, Encoder, encode_event
from protocol.events import STREAMS, Context, PPOUpdate
from protocol.journal import Journal
from protocol.publisher import TICK_EVENTS, Publisher
from protocol.runs import RunFolder
from protocol.server import Server
from protocol.wire import decode_batch, encode_batches

TICKS = 40
BATCHES = 400
ASK_EVERY_S = 0.011
"""A connection may ask a hundred times a second, and as many at once."""
IN_A_ROW = 50
ASKER = """
import json, time
from pathlib import Path
import zmq
from protocol import connect
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
BURST = 50
BURSTS = 200
WINDOWS = 5
WINDOW_S = 0.25
PAIRS = 24


def update() -> PPOUpdate:
    """A realistic event of 29 fields: values with all their digits, one of them not measured."""
    heads = ("op", "slot", "blueprint", "style", "tempo", "target", "speed", "curve")
    value = random.Random(7).random
    return PPOUpdate(
        seconds=value(), policy_loss=-value(), value_loss=value(), entropy=value(),
        head_entropy={head: value() for head in heads}, approx_kl=value(), clip_fraction=value(),
        ratio_min=value(), ratio_max=1 + value(), explained_variance=value(), grad_norm=value(),
        head_grad_norm={head: value() for head in heads}, critic_grad_norm=value(),
        advantage_mean=value() * 1e-8, advantage_std=1.0, learning_rate=1e-3, entropy_coefficient=0.01,
        epochs=4, minibatches=2, early_stop=False, skipped_nonfinite=0,
        op_fraction={head: value() for head in heads}, lstm_h_rms=value(), lstm_c_rms=value(),
        return_std=value(),
    )  # fmt: skip


def without_heads(event: PPOUpdate) -> PPOUpdate:
    """Its numbers without those of each head: as many fields as the specification's event has."""
    return dataclasses.replace(
        event, **{name: {} for name, value in vars(event).items() if isinstance(value, dict)}
    )


class Steps:
    """Small training steps, as PPO's are."""

    def __init__(self) -> None:
        self._net = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh(),
            torch.nn.Linear(128, 16),
        )  # fmt: skip
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-3)
        self._batch = torch.randn(256, 64)

    def step(self) -> None:
        """Forward, backward, update: about a millisecond."""
        self._optimizer.zero_grad()
        self._net(self._batch).square().mean().backward()
        self._optimizer.step()


def cost_ns(work: Callable[[PPOUpdate], object]) -> list[float]:
    """Nanoseconds per call, one value for each call, in bursts between training steps.

    The steps take the caches, as in a trainer: the first call of each burst is the tail of the distribution.
    """
    steps = Steps()
    event = update()
    clock = time.perf_counter_ns
    overhead = min(clock() * -1 + clock() for _ in range(1000))
    costs = []
    for _ in range(BURSTS):
        for _ in range(BURST):
            clock()  # as warm after a pause as the one it is compared with
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
        """Steps done per second while emitting the event so many times a second between them."""
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
    """How long each of `count` questions took, asked by another process, `row` at a time without a pause."""
    program = ASKER % {
        "question": question, "home": str(home), "count": count, "row": row, "pause": ASK_EVERY_S,
    }  # fmt: skip
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    taken: list[float] = json.loads(out)
    return taken


class Bare:
    """A ROUTER in a thread of its own that answers each message with so many bytes."""

    def __init__(self, home: Path, size: int) -> None:
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
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
    """A snapshot and as many bytes of a bare socket, in turn; then snapshots in a row."""
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
            f"{name}_median_ms": statistics.median(values), f"{name}_p99_ms": p99(values),
            f"{name}_overall_p99_ms": worst(values),
        }  # fmt: skip
    return figures


def io_us(folder: Path) -> float:
    """Microseconds of its own time that the I/O thread spends on an event: number, encode, write, batch."""
    emitter = Emitter()
    publisher = Publisher(
        emitter, Journal(folder / "io.jsonl"), run="r", boot="b", send=lambda _: None, note=lambda *_: None
    )
    event, costs = update(), []
    for _ in range(TICKS):
        for _ in range(TICK_EVENTS):
            emitter.emit(event)
        begin = time.thread_time()
        publisher.tick()
        costs.append((time.thread_time() - begin) / TICK_EVENTS * 1e6)
    return statistics.median(costs)


def events_per_s(folder: Path) -> float:
    """Events that go through an ipc socket in full batches, headers and bodies checked at the other end."""
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    for _ in range(BATCH_EVENTS):
        encoder.add(1, Context(), update())
    batches = encoder.take()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    sender.bind(f"ipc://{folder}/batches")
    receiver.connect(f"ipc://{folder}/batches")
    seen = 0

    def receive() -> None:
        nonlocal seen
        while seen < BATCHES * BATCH_EVENTS:
            _, header, body = receiver.recv_multipart()
            seen += len(decode_batch(header, body)[1])

    thread = threading.Thread(target=receive)
    begin = time.perf_counter()
    thread.start()
    sent = 0
    while sent < BATCHES * BATCH_EVENTS:
        for frames in encode_batches(batches, run="r", boot="b", ts=1, dropped=0):
            sender.send_multipart(frames)
        sent += BATCH_EVENTS
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
    """The median of the 99th percentiles of consecutive windows: other work on the machine disturbs some."""
    size = len(values) // WINDOWS
    return statistics.median([worst(values[at : at + size]) for at in range(0, size * WINDOWS, size)])


def worst(values: list[float]) -> float:
    """The 99th percentile of all values, disturbed or not."""
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
            "snapshot_p99_ms": ("<=", 1.0),
            "batched_events_per_s": (">=", 400_000),
        },
    )


def measure(home: Path) -> dict[str, float]:
    """All figures, taken in an empty folder that is nobody else's."""
    (home / "run").mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(home / "run")
    with RunFolder.claim("bench", home=home) as run:
        server = Server(run, hello={})
        server.start()
        subscriber = Subscriber("bench", home=home)
        while subscriber.state != "live":
            subscriber.drain()
            subscriber.wait(0.01)

        publisher = zmq.Context.instance().socket(zmq.PUB)
        publisher.bind(f"ipc://{home}/alone")
        gc.collect()
        emit = cost_ns(server.emitter.emit)
        send = cost_ns(lambda event: publisher.send_multipart([b"1/metric", orjson.dumps(event)]))
        standard = cost_ns(lambda event: json.dumps(dataclasses.asdict(event)))
        publisher.close(0)
        others = others_ns(home)
        io = io_us(home)
        rate = events_per_s(home)
        trainer = Trainer(server)
        event, plain = update(), without_heads(update())
        ratio_10k_plain = trainer.ratio(10_000, plain)
        ratio_1k, ratio_10k = trainer.ratio(1_000, event), trainer.ratio(10_000, event)
        stop = threading.Event()
        alone = asked_alone(home)
        thread = threading.Thread(target=trainer.steps_per_s, args=(60.0, 1_000, event, stop))
        thread.start()
        ping = milliseconds("run.ping()", home)
        beside = milliseconds(SNAPSHOT, home)
        stop.set()
        thread.join()
        subscriber.close()
        server.close()
    print(f"emit {statistics.median(emit):.0f} ns; orjson + send {statistics.median(send):.0f} ns; "
          f"json.dumps(asdict) {statistics.median(standard):.0f} ns")  # fmt: skip
    return {
        **others,
        **{
            f"{name.removesuffix('_median_ns')}_over_emit": ns / statistics.median(emit)
            for name, ns in others.items()
        },
        "io_us_per_event": io,
        "batched_events_per_s": rate,
        "emit_median_ns": statistics.median(emit),
        "emit_p99_ns": p99(emit),
        "emit_overall_p99_ns": worst(emit),
        "send_median_ns": statistics.median(send),
        "stdlib_json_median_ns": statistics.median(standard),
        "send_over_emit": statistics.median(send) / statistics.median(emit),
        "loop_ratio_1k": ratio_1k,
        "loop_ratio_10k": ratio_10k,
        "loop_ratio_10k_plain": ratio_10k_plain,
        "event_bytes": float(len(encode_event(1, time.time_ns() // 1000, Context(), event))),
        "plain_event_bytes": float(len(encode_event(1, time.time_ns() // 1000, Context(), plain))),
        "ping_median_ms": statistics.median(ping),
        "ping_p99_ms": p99(ping),
        "ping_overall_p99_ms": worst(ping),
        **alone,
        "snapshot_beside_loop_median_ms": statistics.median(beside),
        "snapshot_beside_loop_p99_ms": p99(beside),
        "load1": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
