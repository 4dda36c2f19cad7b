"""Numbers where they are hard: in languages that know only doubles, and scalars of other libraries."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.codec.json_lines import decode_line, encode_event
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.server import Server
from tools.message_examples import corpus

EXACT = 2**53
NODE = """
const lines = require("fs").readFileSync(0, "utf8").trim().split("\\n");
for (const line of lines) { const e = JSON.parse(line); console.log(e.seq + " " + e.ts); }
"""


def integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from integers(part)
    elif isinstance(value, list):
        for part in value:
            yield from integers(part)


def written(server: Server) -> list[bytes]:
    """Lines of the corpus, of this minute, and with the greatest number and time that are promised."""
    for n in range(20):
        server.emitter.emit(ev.RoundStarted(rounds=n))
    server.close()
    now = [event.line for event in read(server.run.events)]
    last = encode_event(EXACT - 1, EXACT - 1, ev.Context(), ev.RoundStarted(rounds=1))
    return [*corpus()["events"], *now, last]


@pytest.mark.parametrize("part", ["events", "requests", "frames"])
def test_every_integer_of_the_corpus_is_exact_as_a_double(part: str) -> None:
    for line in corpus()[part]:
        for number in integers(json.loads(line)):
            assert abs(number) < EXACT, line


@pytest.mark.parametrize(
    "command", [["jq", "-r", '"\\(.seq) \\(.ts)"'], ["node", "-e", NODE]], ids=lambda command: command[0]
)
def test_numbers_and_times_are_read_exactly(server: Server, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    lines = written(server)
    result = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=True)
    expected = [f"{event['seq']} {event['ts']}" for event in map(json.loads, lines)]
    assert result.stdout.decode().splitlines() == expected


def done(value: object) -> ev.CommandDone:
    return ev.CommandDone(id="1", method="pause", result={"value": value}, seconds=0.0)


@pytest.mark.parametrize(
    "value",
    [np.float32(0.5), np.float64(1e308), np.int64(2**62), np.bool_(True), 2**63, -(2**63), 2**64 - 1, -0.0],
    ids=repr,
)
def test_a_scalar_comes_back_as_the_same_number(value: Any) -> None:
    back = decode_line(encode_event(1, 2, ev.Context(), done(value))).data.result["value"]
    plain = value.item() if isinstance(value, np.generic) else value
    assert (back, type(back), str(back)) == (plain, type(plain), str(plain))


@pytest.mark.parametrize("value", [torch.tensor(0.5), torch.ones(3)], ids=["scalar", "column"])
def test_tensors_are_not_read_back_from_their_device_unasked(value: torch.Tensor) -> None:
    with pytest.raises(WireError, match="CommandDone cannot be encoded"):
        encode_event(1, 2, ev.Context(), done(value))


def test_half_a_character_costs_only_its_own_place(server: Server) -> None:
    for text in ("a\ud83d", "\udc00b", "\udcff", "\x00\x1f", "é中🜂"):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=text))
    server.close()
    messages = [e.data.message for e in read(server.run.events) if e.type == "log"]
    assert messages == ["a\\ud83d", "\\udc00b", "\\udcff", "\x00\x1f", "é中🜂"]
