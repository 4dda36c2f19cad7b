"""Tools that read: runs, status, SQL, incidents, events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import msgspec

from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.run_facts import read_run_facts
from esper_overwatch.protocol.catalogue.selection import COLUMNS, Selection
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import RunNotFound, WireError
from esper_overwatch.protocol.journal.reader import last_words
from esper_overwatch.protocol.messages.anomaly_guide import advice
from esper_overwatch.protocol.messages.events import Incident, RunStarted
from esper_overwatch.protocol.messages.incidents import incident_order
from esper_overwatch.protocol.runs import RunInfo
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.trainer.query.run_difference import compare_runs

from .answers import bounded, moment, named, plain
from .indexing import JournalIndexer
from .targets import Targets

MAX_RUNS = 100
MAX_ROWS = 1_000
MAX_EVENTS = 500
SECONDS = 20.0
"""After so long a tool answers what it has found, or refuses."""
QUERY_MEMORY_BYTES = 1 << 30


class ReadingTools:
    """Functions that become tools: their names, parameters and docstrings are what an assistant sees."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._indexer = JournalIndexer()

    def list_runs(self, include_ended: bool = False, where: str = "", sort: str = "") -> dict[str, Any]:
        """List the runs, newest first: state, times, tags, notes, configuration, last values.

        Kind is training, or published: a loop of somebody's own, whose values are in the view scalars.
        Of the configuration only options in which the listed runs differ are shown, of a single run all.

        Args:
            include_ended: List runs that have ended, too.
            where: SQL (SQLite) over the columns, such as config.lr < 0.01 AND 'baseline' IN tags; it finds
                ended runs, too. Last values are summary.loss, names that are no words summary."train/loss".
            sort: A column, and DESC for the largest first, such as summary.loss.
        """
        if self._targets.pinned is not None:
            return {"runs": [self.status(None)], "truncated": False}
        if not where and not include_ended:
            where = "live"
        selection = Selection(columns=tuple(COLUMNS), where=where, sort=sort)
        found = Catalogue().select(selection, seconds=SECONDS)
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows[: MAX_RUNS + 1]]
        kept, truncated = bounded(_without_common_options(rows), MAX_RUNS)
        return {"runs": kept, "truncated": truncated}

    def compare_runs(self, run: str, other: str) -> dict[str, Any]:
        """Name what differs between two runs: configuration, code, packages, environment, results.

        What is equal is left out. Of a run that was resumed, its newest boot counts.

        Args:
            run: Name or id, or the beginning of one.
            other: The same of the second run.
        """
        first, second = self._targets.local(run), self._targets.local(other)
        if first is None or second is None:
            raise RunNotFound("compare_runs reads the runs' files, which no port leads to; use --ssh")
        found = compare_runs(read_run_facts(first), read_run_facts(second))
        rows = (msgspec.to_builtins(difference) for difference in found.differences)
        differences, truncated = bounded(rows, MAX_ROWS)
        return {
            "a": found.a,
            "b": found.b,
            "differences": differences,
            "notes": plain(found.notes),
            "truncated": truncated,
        }

    def status(self, run: str | None = None) -> dict[str, Any]:
        """Show the state of a run: round, epoch, queues, journal, clients; of an ended one how it ended.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
        """
        local = self._targets.local(run)
        if local is not None and not local.is_live:
            words = last_words(local.path / EVENTS_FILE)
            answer = _row(local)
            if words is not None:
                answer |= {"last_event": moment(words.ts), "round": words.round, "epoch": words.epoch}
                answer["stopped"] = None if words.stopped is None else asdict(words.stopped)
        else:
            with self._targets.connect(run) as client:
                answer = {**client.status(), "live": True}
        made: dict[str, Any] = plain(answer)
        return made

    def query(self, sql: str, run: str | None = None, max_rows: int = 100) -> dict[str, Any]:
        """Query the journal of a run in SQL (DuckDB); nothing can be changed, and no file read.

        Views of the run: runs (its starts), rounds, episodes, epochs (a row per env and epoch), rewards,
        returns (by component), ppo_updates, observations, decisions, phases, parameters, checkpoints. Of
        the policy on held-out hosts: evaluations, evaluation_leads, evaluation_tasks. Of seeds: seeds
        (a row per life), slots, stages, gates, gate_checks, shapley, interactions. Of trouble: incidents,
        anomalies, rollbacks, drift, layers, system, logs, commands. Others: scalars (of a published loop),
        raw_events. `DESCRIBE epochs` lists columns.

        The first query of a long journal may answer that it is being indexed: try again in a moment.

        Args:
            sql: One SELECT.
            run: Name or id, or the beginning of one; the newest live run by default.
            max_rows: Rows of the answer, up to 1000; aggregate where there are more.
        """
        local = self._targets.local(run)
        if local is None:
            raise RunNotFound("query reads the run's files, which no port leads to; use --ssh")
        from esper_overwatch.trainer.query.database import Database, QueryLimits

        self._indexer.wait(local.path / EVENTS_FILE, SECONDS)
        limits = QueryLimits(seconds=SECONDS, memory_bytes=QUERY_MEMORY_BYTES)
        with closing(Database(local.path / EVENTS_FILE, limits)) as database:
            result = database.ask(sql, max_rows=min(max(1, max_rows), MAX_ROWS))
        rows, truncated = bounded(named(result.columns, result.rows), MAX_ROWS)
        return {
            "columns": plain(result.columns),
            "rows": rows,
            "truncated": truncated or result.has_more,
            "damage": plain(database.damage.lines),
        }

    def incidents(self, run: str | None = None, open_only: bool = True) -> dict[str, Any]:
        """List the incidents of a run, the worst first: what, where, the suspected change, undo, advice.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            open_only: Leave out those that are over.
        """
        local = self._targets.local(run)
        is_complete = True
        if local is None or local.is_live:
            with self._targets.connect(run) as client:
                newest = [event for event in client.snapshot(("life",)) if isinstance(event.data, Incident)]
        else:
            newest, is_complete = self._newest_incidents(run)
        newest.sort(key=lambda event: incident_order(event.data))
        rows = (_incident(event) for event in newest if event.data.active or not open_only)
        kept, truncated = bounded(rows, MAX_EVENTS)
        return {"incidents": kept, "truncated": truncated or not is_complete}

    def events(
        self, run: str | None = None, types: list[str] | None = None, limit: int = 20
    ) -> dict[str, Any]:
        """Show the newest events of a run, live or ended, oldest first.

        Args:
            run: Name or id, or the beginning of one; the newest live run by default.
            types: Only these types, such as round.finished, seed.stage, incident, log, checkpoint.saved.
            limit: Number of events, up to 500. An `epoch` has a number per env in each column.
        """
        wanted = {*(types or ())}
        clock = _Deadline()

        def found() -> Iterator[dict[str, Any]]:
            with closing(self._targets.open_log(run)) as log:
                for _, _, line in clock.watch(log.newest_first()):
                    event = _decode(line)
                    if event is not None and (not wanted or event.type in wanted):
                        yield json.loads(line)

        rows, truncated = bounded(found(), min(max(1, limit), MAX_EVENTS))
        return {"events": rows[::-1], "truncated": truncated or clock.has_passed}

    def _newest_incidents(self, run: str | None) -> tuple[list[Event], bool]:
        """The newest event of each in an ended run's last boot, and whether all of it was read."""
        newest: dict[str, Event] = {}
        clock = _Deadline()
        with closing(self._targets.open_log(run)) as log:
            for stream, _, line in clock.watch(log.newest_first()):
                wanted = stream == "life" and (
                    b'"type":"incident"' in line or b'"type":"run.started"' in line
                )
                event = _decode(line) if wanted else None
                if event is None:
                    continue
                if isinstance(event.data, RunStarted):
                    break  # each boot has its own
                if isinstance(event.data, Incident):
                    newest.setdefault(event.data.id, event)
        return list(newest.values()), not clock.has_passed


class _Deadline:
    """Ends a reading of a long journal after `SECONDS`."""

    def __init__(self) -> None:
        self.has_passed = False
        self._end = time.monotonic() + SECONDS

    def watch(self, lines: Iterator[tuple[str, int, bytes]]) -> Iterator[tuple[str, int, bytes]]:
        """Pass lines through until the time has passed."""
        for line in lines:
            if time.monotonic() > self._end:
                self.has_passed = True
                return
            yield line


def _without_common_options(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out options that all runs of a kind have, with one value; a run that is alone keeps its own."""
    for kind in {row["kind"] for row in rows}:
        configs = [row["config"] for row in rows if row["kind"] == kind]
        common = {
            name
            for name, value in configs[0].items()
            if len(configs) > 1 and all(name in one and one[name] == value for one in configs)
        }
        for config in configs:
            for name in common:
                del config[name]
    return rows


def _row(run: RunInfo) -> dict[str, Any]:
    return {
        "name": run.name,
        "id": run.id,
        "kind": run.kind,
        "live": run.is_live,
        "state": run.state,
        "pid": run.pid,
        "started": moment(run.started),
        "damage": plain(run.damage),
    }


def _incident(event: Event) -> dict[str, Any]:
    """The fields of the event, its times as words, its clock, and what to try."""
    data = vars(event.data)
    times = {name: moment(data[name]) if data[name] else None for name in ("since", "suspect_ts", "over")}
    steps = advice(data["kind"], data["undo"])
    return {**data, **times, "round": event.ctx.round, "epoch": event.ctx.epoch, "advice": steps}


def _decode(line: bytes) -> Event | None:
    try:
        return decode_line(line)
    except WireError:
        return None
