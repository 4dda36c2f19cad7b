"""What another rank than the first reports of its time."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.ranks import orders
from esper_overwatch.trainer.ranks.rank_report import decode
from esper_overwatch.trainer.ranks.worker import Worker
from tests.trainer.test_governor import CONFIG, CPU

torch.set_num_threads(1)
DAYS = 1e7


def test_pause_is_in_no_rank_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shift = time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + shift)
    given = [orders.KeepWaiting(), orders.KeepWaiting(), orders.StartEpoch([])]

    def receive(_group: ProcessGroup) -> orders.Order:
        nonlocal shift
        shift += DAYS * (len(given) < 3)  # which an order makes the rank wait for
        return given.pop(0)

    monkeypatch.setattr(orders, "receive", receive)
    sent: list[bytes] = []
    group = ProcessGroup()
    monkeypatch.setattr(group, "gather_bytes", sent.append)
    handlers = list(logging.getLogger().handlers)
    worker = Worker(group, Trainer(CONFIG, load("digits"), CPU), CPU)
    try:
        worker.on_epoch_end(1, 1)
        worker.on_frame({"reward": np.zeros(4)}, ())
    finally:
        worker.close()
        logging.getLogger().handlers = handlers
    report = decode(sent[0])
    assert shift == 2 * DAYS, "it has waited"
    assert 0.0 < report.seconds < DAYS / 10
    assert sum(report.phases.values()) == pytest.approx(report.seconds)
