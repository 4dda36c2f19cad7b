"""The queries that the documentation names are answered by a run while it trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.trainer.query.database import Database

from .conftest import House, eventually

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"
QUERIES = dict(re.findall(r"^\| `(\w+)` \| `(SELECT .*)` \|$", PAGE.read_text(encoding="utf-8"), re.M))
MAY_BE_EMPTY = {"anomalies", "incidents"}
"""A healthy run has none."""


@pytest.mark.slow
def test_a_run_in_training_answers_all_documented_queries(house: House) -> None:
    assert len(QUERIES) == 19
    sets = ("policy.kind=ppo", "validation.shapley_every=1", "telemetry.level=DEBUG")
    process = house.spawn("live", *(word for item in sets for word in ("--set", item)))
    eventually(lambda: len(house.journal("live", "round.finished")) >= 2)
    empty = set()
    for view, sql in QUERIES.items():
        result = Database(house.run_folder("live") / EVENTS_FILE).ask(sql)
        assert result.columns, view
        if not result.rows:
            empty.add(view)
    assert empty <= MAY_BE_EMPTY
    rounds = house.ask("query", "live", "SELECT max(round) AS newest FROM rounds")[0]["newest"]
    eventually(
        lambda: house.ask("query", "live", "SELECT max(round) AS newest FROM rounds")[0]["newest"] > rounds
    )
    assert house.ask("status", "live")["state"] == "TRAINING"
    assert process.poll() is None, "it trained all the while"
