"""A configuration that changes while the run is published."""

from __future__ import annotations

import threading
from argparse import Namespace
from pathlib import Path

import pytest

from esper_overwatch import PublishedRun, connect
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev

from .conftest import Publish


def changes(run: PublishedRun) -> list[dict[str, object]]:
    run.finish()
    return [e.data.config for e in read(run.path / "events.jsonl") if isinstance(e.data, ev.RunConfigured)]


def test_change_is_there_for_all_who_ask(start_run: Publish) -> None:
    run = start_run("tuned", config={"lr": 0.1, "net": {"width": 4}})
    catalogue = Catalogue()
    run.config.update(Namespace(batch=64, data=Path("/data")), lr=0.2)
    whole = {"lr": 0.2, "net": {"width": 4}, "batch": 64, "data": "/data"}
    assert dict(run.config) == whole
    assert run.flush(60.0)
    with connect("tuned") as client:
        assert client.hello()["config"] == whole
        assert [e.data.config for e in client.snapshot(("life",)) if e.type == "run.config"] == [whole]
    (entry,) = catalogue.entries()
    assert entry.config == {"lr": 0.2, "net.width": 4, "batch": 64, "data": "/data"}
    run.config.update({"lr": 0.3})
    run.config.update({"lr": 0.3})
    assert run.flush(60.0)
    (entry,) = catalogue.entries()
    assert entry.config["lr"] == 0.3, "read on from where it was"
    assert [change["lr"] for change in changes(run)] == [0.2, 0.3], "once for each change"
    state = State()
    for event in read(run.path / "events.jsonl"):
        state.fold(event)
    assert state.run is not None
    assert state.run.config["lr"] == 0.3


def test_resumed_run_begins_with_what_it_is_given(start_run: Publish) -> None:
    run = start_run("again", config={"lr": 0.1})
    run.config.update(lr=0.2)
    run.finish()
    start_run("again", config={"lr": 0.4}, resume=True).finish()
    (entry,) = Catalogue().entries()
    assert entry.config == {"lr": 0.4}


def test_change_after_the_end_is_warned_of_once(start_run: Publish, caplog: pytest.LogCaptureFixture) -> None:
    run = start_run("ended")
    run.finish()
    caplog.clear()
    for rate in (0.1, 0.2):
        run.config.update(lr=rate)
    (warning,) = caplog.messages
    assert "run ended has ended" in warning
    strict = start_run("strict", strict=True)
    with pytest.raises(PublishError, match="give numbers, text"):
        strict.config.update(fn=object())
    strict.finish()
    with pytest.raises(PublishError):
        strict.config.update(lr=0.1)
    assert changes(run) == changes(strict) == []


def test_no_change_of_many_threads_is_lost(run: PublishedRun) -> None:
    threads = [threading.Thread(target=run.config.update, args=({f"k{i}": i},)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = changes(run)
    assert len(found) == 8
    assert found[-1].items() >= {f"k{i}": i for i in range(8)}.items()
