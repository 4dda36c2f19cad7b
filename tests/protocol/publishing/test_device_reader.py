"""Values on a device: nothing but they themselves waits for it, also where it never answers."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from esper_overwatch import PublishedRun, connect
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.publishing import run as publishing
from esper_overwatch.protocol.publishing.device_reader import DeviceReader, is_on_device

from .test_run import logged


class OnDevice:
    """Numbers as a GPU's tensor has them: to read them, `device` is waited for."""

    device, dtype = "cuda:0", "float32"

    def __init__(
        self, answers: threading.Event, values: list[float], shape: tuple[int, ...] | None = None
    ) -> None:
        self._answers, self._values = answers, values
        self.shape = (len(values),) if shape is None else shape

    def detach(self) -> OnDevice:
        return self

    def clone(self) -> OnDevice:
        return self

    def reshape(self, *shape: Any) -> OnDevice:
        return OnDevice(self._answers, self._values, () if shape == ((),) else None)

    def __getitem__(self, _: slice) -> OnDevice:
        return self

    def tolist(self) -> list[float]:
        assert self._answers.wait(300)
        return self._values

    def item(self) -> float:
        return self.tolist()[0]


def test_value_comes_when_the_device_has_it(run: PublishedRun) -> None:
    answers = threading.Event()
    run.log(step=1, loss=OnDevice(answers, [0.5], ()))
    run.log(step=1, weights=OnDevice(answers, [1.0, 2.0, 3.0]))
    run.log(step=2, loss=0.25)
    assert not run.flush(0.2), "two values are waited for"
    with connect(run.name) as client:
        assert client.status()["step"] == 2, "the run answers"
    answers.set()
    assert run.flush(300)
    assert run.summary["loss"] in (0.25, 0.5)
    assert sorted((e.step, e.values["loss"]) for e in logged(run, ev.Scalars)) == [(1, 0.5), (2, 0.25)]
    assert [(e.step, e.max) for e in logged(run, ev.Histogram)] == [(1, 3.0)]


def test_device_that_never_answers_costs_its_values(
    run: PublishedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "FLUSH_SECONDS", 0.5)
    never = threading.Event()
    for step in range(3):
        run.log(step=step, loss=OnDevice(never, [0.5], ()))
        run.log(step=step, fine=1.0)
    with caplog.at_level(logging.WARNING):
        assert [e.values for e in logged(run, ev.Scalars)] == [{"fine": 1.0}] * 3
    assert "3 values of a device that does not answer" in caplog.text
    never.set()


@pytest.mark.parametrize(
    ("device", "waits"), [("cpu", False), ("cuda:0", True), ("mps", True), ("CPU:0", False), (None, False)]
)
def test_only_what_is_not_in_memory_is_waited_for(device: str | None, waits: bool) -> None:
    value = type("Value", (), {} if device is None else {"device": device})()
    assert is_on_device(value) == waits


def test_what_is_read_is_counted() -> None:
    gate, seen = threading.Event(), []

    def read(item: int) -> None:
        assert gate.wait(300)
        seen.append(item)

    reader = DeviceReader[int](read)
    assert reader.wait(0.0) == 0
    begun = time.monotonic()
    for item in range(5):
        reader.put(item)
    assert reader.wait(0.1) == 5
    assert time.monotonic() - begun < 60
    gate.set()
    assert reader.wait(300) == 0
    assert seen == list(range(5))
