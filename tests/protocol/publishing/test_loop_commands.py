"""Commands of a loop: registered, checked, handed over once, and reported for what became of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from esper_overwatch import Client, PublishedRun, connect
from esper_overwatch.protocol.errors import PublishError, RequestError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages.events import CommandDone, CommandFailed, CommandRefused
from esper_overwatch.protocol.messages.results import HelloResult, StatusResult
from esper_overwatch.protocol.server.mailbox import MAX_MAILBOX_COMMANDS
from tests.protocol.harness import looping, until

from .conftest import Publish


@pytest.fixture
def client(run: PublishedRun) -> Iterator[Client]:
    with connect("loop") as made:
        yield made


def events(run: PublishedRun, kind: type) -> list[Any]:
    """Those of a kind that the journal has."""
    return [event.data for event in read(run.path / "events.jsonl") if isinstance(event.data, kind)]


def outcome(client: Client, id_: str) -> tuple[str, str | None]:
    op = until(lambda: (found := client.op(id_))["state"] not in ("waiting", "running") and found)
    return op["state"], op["error"] and op["error"]["message"]


def test_command_goes_to_the_loop_and_back(run: PublishedRun, client: Client) -> None:
    run.command("save", help="Save the weights.", every=10, tag=str)
    seen: list[dict[str, Any]] = []

    def body() -> None:
        if call := run.asked("save"):
            seen.append(call.params)
            call.done(path=f"{call['tag']}.pt")

    with looping(body):
        answer = client.command("save", {"tag": "best"}, wait=True, reason="lunch")
    assert answer["path"] == "best.pt"
    assert seen == [{"every": 10, "tag": "best"}]


def test_types_help_and_defaults_are_told(run: PublishedRun, client: Client) -> None:
    run.command("tune", help="Change something.", rate=0.1, on=True, name="x", count=int)
    hello, status = client.hello(), client.status()
    assert hello["commands"]["tune"] == {
        "help": "Change something.",
        "parameters": {
            "rate": {"type": "float", "default": 0.1},
            "on": {"type": "bool", "default": True},
            "name": {"type": "str", "default": "x"},
            "count": {"type": "int"},
        },
    }
    assert hello["methods"]["tune"]["socket"] == "ctl"
    assert status["commands"] == hello["commands"]
    msgspec.convert(hello, HelloResult)
    msgspec.convert(status, StatusResult)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"count": "1"},
        {"count": 1.5},
        {"count": 1, "rate": "fast"},
        {"count": 1, "on": 1},
        {"count": 1, "new": 1},
    ],
)
def test_wrong_parameters_are_refused(run: PublishedRun, client: Client, params: dict[str, Any]) -> None:
    run.command("tune", rate=0.1, on=True, count=int)
    with pytest.raises(RequestError) as refusal:
        client.command("tune", params)
    assert refusal.value.kind == "invalid_params"
    assert run.asked("tune") is None


@pytest.mark.parametrize(
    "method", ["checkpoint", "telemetry.escalate", "pause", "param.get", "stop", "nosuch"]
)
def test_command_of_nobody_is_unknown(client: Client, method: str) -> None:
    with pytest.raises(RequestError) as refusal:
        client.call(method)
    assert refusal.value.kind == "unknown_method"
    assert method not in refusal.value.data["known"]


@pytest.mark.parametrize(
    "name", ["", "Save", "a b", "pause", "resume", "status", "mark", "op.cancel", "x" * 65]
)
def test_names_that_are_not_free_are_refused(run: PublishedRun, name: str) -> None:
    with pytest.raises(PublishError):
        run.command(name)


@pytest.mark.parametrize("value", [None, [1], bytes, {"a": 1}, object()])
def test_parameters_have_simple_types(run: PublishedRun, value: Any) -> None:
    with pytest.raises(PublishError, match="must be bool, int, float"):
        run.command("save", what=value)
    with pytest.raises(PublishError, match=r"'x y' = 1: .* its name one of Python's"):
        run.command("save", **{"x y": 1})
    with pytest.raises(PublishError, match="a help of 9999 characters, of at most 1024"):
        run.command("save", help="h" * 9_999)
    with pytest.raises(PublishError, match="its help must be a line of text, not 5"):
        run.command("save", 5)  # type: ignore[arg-type]
    run.command("save", what=1)
    with pytest.raises(PublishError, match="registered already"):
        run.command("save")


def test_asking_again_reports_the_one_before(run: PublishedRun, client: Client) -> None:
    assert run.asked("save") is None
    first, second = client.command("save")["id"], client.command("save")["id"]
    taken = until(lambda: run.asked("save"))
    assert client.op(first)["state"] not in ("done", "failed")
    until(lambda: run.asked("save"))
    assert outcome(client, first) == ("done", None)
    assert run.asked("save") is None
    assert outcome(client, second) == ("done", None)
    taken.fail("too late")
    assert outcome(client, first) == ("done", None)


def test_failure_of_a_command_is_told(run: PublishedRun, client: Client) -> None:
    run.command("save")
    id_ = client.command("save")["id"]
    call = until(lambda: run.asked("save"))
    with pytest.raises(PublishError, match="JSON"):
        call.done(path=object())
    call.fail("the disk is full")
    assert outcome(client, id_) == ("failed", "the disk is full")


def test_result_with_numbers_for_keys_is_told(run: PublishedRun, client: Client) -> None:
    run.command("save")
    id_ = client.command("save")["id"]
    call = until(lambda: run.asked("save"))
    with pytest.raises(PublishError, match="64 bits"):
        call.done(seed=2**64)
    call.done(losses={0: 1.0}, seed=2**64 - 1)
    op = until(lambda: (found := client.op(id_))["state"] == "done" and found)
    assert op["result"] == {"losses": {"0": 1.0}, "seed": 2**64 - 1}


def test_stop_is_done_when_the_loop_has_ended(run: PublishedRun) -> None:
    run.asked("stop")
    results: list[dict[str, Any]] = []

    def send() -> None:
        with connect("loop") as client:
            results.append(client.stop(wait=True))

    sender = threading.Thread(target=send)
    sender.start()
    call = until(lambda: run.asked("stop"))
    assert call.params == {"mode": "after_epoch", "checkpoint": True}
    run.finish()
    sender.join()
    assert len(results) == 1


def test_what_nobody_asked_for_is_cancelled(start_run: Publish) -> None:
    run = start_run("ending")
    run.command("save")
    errors: list[RequestError] = []

    def send() -> None:
        with connect("ending") as client, pytest.raises(RequestError) as refusal:
            client.command("save", wait=True)
        errors.append(refusal.value)

    sender = threading.Thread(target=send)
    sender.start()
    until(lambda: len(run._server.mailbox))
    run.finish()
    sender.join()
    assert errors[0].kind == "cancelled"
    assert "before its loop asked for it" in errors[0].message


def test_command_in_hand_fails_with_the_loop(start_run: Publish) -> None:
    run = start_run("failing")
    run.command("save")
    with connect("failing") as client:
        id_ = client.command("save")["id"]
        until(lambda: run.asked("save"))
        run.finish(RuntimeError("boom"))
    (failed,) = events(run, CommandFailed)
    assert (failed.id, failed.message) == (id_, "the loop ended: RuntimeError: boom")


def test_waiting_command_can_be_cancelled(run: PublishedRun, client: Client) -> None:
    run.command("save")
    run.command("other")
    id_ = client.command("save")["id"]
    with looping(lambda: run.asked("other")):
        client.cancel(id_, wait=True)
    assert outcome(client, id_)[0] in ("cancelled", "failed")
    assert run.asked("save") is None
    with looping(lambda: run.asked("other")), pytest.raises(RequestError) as refusal:
        client.cancel("nosuch", wait=True)
    assert refusal.value.kind == "not_found"


def test_pause_point_waits_for_resume(run: PublishedRun, client: Client) -> None:
    run.pause_point()
    with looping(run.pause_point):
        client.pause(wait=True)
        assert client.status()["state"] == "PAUSED"
        with pytest.raises(RequestError, match="paused already"):
            client.pause()
        client.resume(wait=True)
        until(lambda: client.status()["state"] == "TRAINING")
    with pytest.raises(PublishError, match="pause_point"):
        run.asked("pause")


def pause_once(run: PublishedRun, resume: Callable[[Client], object]) -> None:
    """Call `pause_point`, and `resume` in another thread once the run is paused."""

    def send() -> None:
        with connect("loop") as other:
            until(lambda: other.status()["state"] == "PAUSED")
            resume(other)

    sender = threading.Thread(target=send)
    sender.start()
    run.pause_point()
    sender.join()
    run.flush()


def test_one_resume_ends_every_pause(run: PublishedRun, client: Client) -> None:
    run.pause_point()
    ids = [client.pause()["id"] for _ in range(2)]
    pause_once(run, lambda other: ids.append(other.resume()["id"]))
    assert [client.op(id_)["state"] for id_ in ids] == ["done"] * 3
    assert [done.id for done in events(run, CommandDone)] == ids  # both pauses while it was paused


def test_second_resume_is_not_kept_for_a_later_pause(run: PublishedRun, client: Client) -> None:
    run.pause_point()
    ids = [client.pause()["id"]]

    def resume_twice(other: Client) -> None:
        with run._commands._lock:  # the loop takes neither before both are there
            ids.extend(other.resume()["id"] for _ in range(2))

    pause_once(run, resume_twice)
    assert [client.op(id_)["state"] for id_ in ids] == ["done"] * 3


def test_stop_ends_a_pause(run: PublishedRun, client: Client) -> None:
    run.asked("stop")
    run.pause_point()
    with looping(run.pause_point):
        client.pause(wait=True)
        client.stop()
        until(lambda: client.status()["state"] == "TRAINING")
    assert run.asked("stop")


def fill(run: PublishedRun, client: Client) -> list[str]:
    """Send as many `save` as may wait, to a loop that asks for `other` only; gives their ids."""
    ids = []
    for _ in range(MAX_MAILBOX_COMMANDS):
        ids.append(client.command("save")["id"])
        assert run.asked("other") is None
    return ids


def test_commands_over_the_limit_are_refused(run: PublishedRun, client: Client) -> None:
    run.command("save")
    run.command("other")
    ids = fill(run, client)
    assert client.status()["commands_waiting"] == len(ids)

    def send() -> None:
        with connect("loop") as other:
            ids.append(other.call("save", deadline_s=300.0)["state"])

    sender = threading.Thread(target=send)
    sender.start()
    refused = until(lambda: events(run, CommandRefused))
    assert "64 commands wait already" in refused[0].message
    assert len(ids) == MAX_MAILBOX_COMMANDS
    assert run.asked("save")  # makes room
    sender.join()
    assert ids[-1] == "accepted"
    assert client.status()["commands_waiting"] == MAX_MAILBOX_COMMANDS


def test_full_loop_still_cancels_and_stops(run: PublishedRun, client: Client) -> None:
    run.command("save")
    run.command("other")
    run.asked("stop")
    ids = fill(run, client)
    client.stop()
    assert run.asked("stop")
    with looping(lambda: run.asked("other")):
        client.cancel(ids[0], wait=True)
    assert client.status()["commands_waiting"] == MAX_MAILBOX_COMMANDS - 1


def test_full_loop_resumes(run: PublishedRun, client: Client) -> None:
    run.command("save")
    run.pause_point()
    client.pause()

    def fill_and_resume(other: Client) -> None:
        for _ in range(MAX_MAILBOX_COMMANDS):
            other.command("save")
        other.resume()

    pause_once(run, fill_and_resume)
    assert client.status()["state"] == "TRAINING"


def test_lease_binds_the_loops_commands_too(run: PublishedRun, client: Client) -> None:
    run.command("save")
    with connect("loop") as other:
        other.acquire_lease()
        with pytest.raises(RequestError) as refusal:
            client.command("save")
    assert refusal.value.kind == "leased"


def test_who_commands_a_silent_loop_is_told(
    run: PublishedRun, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.command("save")
    monkeypatch.setattr("esper_overwatch.protocol.server.server.SILENT_SECONDS", 0.0)
    assert client.command("save")["note"].endswith("; it is executed when the loop asks for it")
