"""Prometheus scrapes a daemon that trains."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

import pytest

from tests.trainer.metrics.promtool import run_promtool

from .conftest import House, eventually

pytestmark = pytest.mark.slow


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=300) as answer:
        text: str = answer.read().decode()
        return text


def value(text: str, series: str) -> float:
    """Of a series, written as the exposition writes it."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    assert found, f"{series} is not in:\n{text}"
    return float(found[1])


def test_scrape_of_a_live_run_is_what_status_says(house: House) -> None:
    house.spawn("told", "--set", "metrics.listen=127.0.0.1:0")
    address = house.ask("status", "told")["metrics"]["address"]
    assert address in (house.run_folder("told") / "daemon.log").read_text()
    saved = re.compile(r'esper_checkpoints_total{outcome="saved",run="told"} [1-9]')
    eventually(lambda: saved.search(scrape(address)))
    house.daemon("pause", "told")
    text = eventually(
        lambda: (t := scrape(address)) and value(t, 'esper_run_state{run="told",state="PAUSED"}') and t
    )
    status = house.ask("status", "told")
    assert value(text, 'esper_round{run="told"}') == status["round"]
    assert value(text, 'esper_epochs_total{run="told"}') >= 6
    assert value(text, 'esper_checkpoint_time_seconds{run="told"}') > value(
        text, 'esper_start_time_seconds{run="told"}'
    )
    assert 0 <= value(text, 'esper_round_accuracy_best_ratio{run="told"}') <= 1
    assert value(text, 'esper_commands_total{outcome="accepted",run="told"}') == 1
    slots = sum(float(number) for number in re.findall(r"^esper_slots{.*} (\S+)$", text, re.M))
    assert slots == 4 * 2
    run_promtool("check", "metrics", text=text)
    assert house.daemon("stop", "told").returncode == 0
    house.processes[0].wait(300)
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape(address)


def test_taken_port_ends_the_start_with_one_line(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = house.daemon("start", "second", "--set", f"metrics.listen=127.0.0.1:{port}")
    assert result.returncode == 9
    assert f"metrics.listen = 127.0.0.1:{port}: cannot listen there" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not house.run_folder("second").exists()


def test_resumed_run_listens_again_and_knows_its_checkpoint(house: House) -> None:
    house.spawn("again", "--rounds", "1", "--set", "metrics.listen=127.0.0.1:0")
    eventually(lambda: house.processes[0].poll() is not None)
    (checkpoint,) = (house.run_folder("again") / "checkpoints").glob("round-*.pt")
    saved = checkpoint.stat().st_mtime
    house.spawn("again", "--resume", "again", "--set", "rounds=0")
    text = scrape(house.ask("status", "again")["metrics"]["address"])
    assert value(text, 'esper_checkpoint_time_seconds{run="again"}') >= saved
    assert value(text, 'esper_round{run="again"}') >= 1
    assert house.daemon("stop", "again").returncode == 0
