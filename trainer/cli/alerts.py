"""`esper-daemon alerts`: what a run's rules have raised and sent, and a test of a rule."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.alerts.rules import AlertRulesError, read_rules, rules_path
from esper_overwatch.protocol.client.event_log import open_event_log
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import JournalRange
from esper_overwatch.protocol.messages.events import Alert

from .options import JSON, RUN
from .output import exit_on_damage, format_table, print_json, print_lines
from .run_argument import CLIENT_NAME, RunArgument

_TOLD = ("id", "rule", "level", "title", "text", "when")


class _ListByDefault(click.Group):
    """A group whose first word is RUN where it names no command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def alerts() -> None:
    """List the alerts of a run (`alerts [RUN]`), or send a test of a rule (`alerts test NAME`).

    Rules are written in alerts.toml, beside the settings of the terminal; docs/reference/alerts.md says how.
    """


@alerts.command("list")
@RUN
@JSON
def list_alerts(run: RunArgument, as_json: bool) -> None:
    """List the alerts of RUN, live or ended, and what became of each."""
    run.run_remotely_if_addressed(asks=True)
    found: dict[str, dict[str, Any]] = {}
    report = DamageReport()
    with closing(open_event_log(run.address, client=CLIENT_NAME)) as log:
        wanted = JournalRange("life", log.oldest("life"), None)
        for event in log.read(wanted, on_bad=report.note):
            if isinstance(alert := event.data, Alert):
                told = {name: getattr(alert, name) for name in _TOLD}
                row = found.setdefault(alert.id, {"ts": event.ts, **told, "deliveries": {}})
                if alert.action:
                    delivery = {"state": alert.change, "attempts": alert.attempts, "error": alert.error}
                    row["deliveries"][alert.action] = delivery
    if as_json:
        print_json(list(found.values()), sort_keys=True)
    else:
        header = ["time", "rule", "level", "alert", "sent"]
        print_lines(format_table(header, [_cells(row) for row in found.values()]))
    exit_on_damage(report)


def _cells(row: dict[str, Any]) -> list[str]:
    sent = [
        f"{action} {told['state']}" + (f": {told['error']}" if told["error"] else "")
        for action, told in row["deliveries"].items()
    ]
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["ts"] / 1e6))
    words = ": ".join(part for part in (row["title"], row["text"]) if part)
    return [clock, row["rule"] or "(loop)", row["level"], words, ", ".join(sent) or "--"]


@alerts.command()
@click.argument("name")
@click.option("--file", type=click.Path(path_type=Path), help="Rules of this file, not the user's own.")
def test(name: str, file: Path | None) -> None:
    """Send a test by the webhook and the command of the rule NAME; the run is neither paused nor stopped."""
    from esper_overwatch.protocol.alerts.alerts import trial_message
    from esper_overwatch.protocol.alerts.delivery import NotDelivered, deliver

    rules = {rule.name: rule for rule in read_rules(file)}
    rule = rules.get(name)
    if rule is None:
        known = f"there are {', '.join(rules)}" if rules else "it has none"
        raise AlertRulesError(f"{rules_path(file)}: no rule {name}; {known}")
    errors = []
    for delivery in rule.deliveries:
        try:
            deliver(rule, delivery, trial_message(rule))
            print_lines([f"{delivery}: sent"])
        except NotDelivered as error:
            errors.append(f"{delivery}: {error}")
    if errors:
        raise RequestError("internal", f"alerts.{name}: {'; '.join(errors)}")
    if not rule.deliveries:
        print_lines([f"the rule is right; it would {rule.run} the run when {rule.when}"])
