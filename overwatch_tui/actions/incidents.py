"""Keys for incidents: open their guide, acknowledge, mute, undo what is suspected."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.command_line import parse_line
from esper_overwatch.overwatch_tui.model.incidents import MUTE_SECONDS, IncidentRecord
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.render.incident_rows import current_incident, listed_incidents

from .commands import CommandActions, Question

PROBLEMS = "problems"


class IncidentActions(CommandActions):
    """Open the guide of incidents, acknowledge, mute, undo."""

    def action_incident(self, by: int) -> None:
        """Open the guide of the worst incident that waits, from there of the next one."""
        view, waiting = self.session.view, self._waiting()
        if not waiting:
            is_all = not self.session.view.lists_incidents
            self.show_message("every incident is acknowledged" if is_all else "nothing in this list waits")
        else:
            keys = [record.key for record in waiting]
            selected, is_open = view.selected.get("incidents"), view.name == PROBLEMS and view.detail
            at = keys.index(selected) + by * is_open if selected in keys else 0 if by > 0 else -1
            record = waiting[at % len(waiting)]
            if view.name != PROBLEMS:
                view.show_view(PROBLEMS)
            view.detail = True
            view.selected["incidents"] = record.key
            if record.data.envs:
                view.select("envs", record.data.envs[0])
        self.paint()

    def _waiting(self) -> list[IncidentRecord]:
        """Incidents that `n` goes over; in a focused list only those that it shows."""
        waiting = self.session.state.incidents.unseen(self.session.feed.now())
        if not self.session.view.lists_incidents:
            return waiting
        keys = {record.key for record in waiting}
        return [record for record in listed_incidents(self.body) if record.key in keys]

    def _current(self) -> IncidentRecord | None:
        """Present state of the record that keys act on; one listed in the past may be chosen."""
        record = current_incident(
            self.body if self.session.view.lists_incidents else self.session.panel_inputs()
        )
        return None if record is None else self.session.state.incidents.get(record.key)

    def action_ack(self) -> None:
        record = self._current()
        if record is None or not record.is_waiting:
            self.show_message("nothing to acknowledge")
        else:
            self._acknowledge([record])
            self.session.view.selected.pop("incidents", None)
            self.show_message(f"acknowledged {record.data.title}{self._for_whom()}")
        self.paint()

    def action_ack_all(self) -> None:
        waiting = self.session.state.incidents.waiting()
        self._acknowledge(waiting)
        self.say(f"acknowledged {len(waiting)}{self._for_whom()}")

    def action_mute(self) -> None:
        record = self._current()
        if record is None or not record.data.active:
            self.show_message("nothing to mute")
        else:
            now = self.session.feed.now()
            seconds = 0 if record.is_muted(now) else MUTE_SECONDS
            self.session.view.selected["incidents"] = record.key  # the next press ends it
            self.session.state.incidents.silence(record.key, now + seconds * SECOND if seconds else 0)
            if self.session.speaks_for_all:
                self.session.send("anomaly.mute", {"incident": record.key, "seconds": seconds})
            what = f"muted for {seconds // 60} minutes" if seconds else "no longer muted"
            self.show_message(f"{record.data.title} {what}{self._for_whom()}")
        self.paint()

    def action_ask_undo(self) -> None:
        """Ask whether to take the suspect back."""
        record = self._current()
        parsed = parse_line(record.data.undo) if record is not None and record.data.undo else None
        if record is None or parsed is None:
            self.say("no change is known that could be undone")
        elif self.session.view.read_only:
            self.say("read-only: this terminal sends no commands")
        else:
            text = f"Undo {record.data.suspect}?"
            self._confirm(Question(parsed.method, parsed.params, text, f"sends {record.data.undo}"))

    def _acknowledge(self, records: list[IncidentRecord]) -> None:
        """Acknowledge here at once, and for all viewers as soon as the daemon has it."""
        for record in records:
            self.session.state.incidents.ack(record.key, self.session.feed.now())
            if self.session.speaks_for_all:
                params = {"incident": record.key, "severity": record.data.severity}
                self.session.send("anomaly.acknowledge", params)

    def _for_whom(self) -> str:
        return " for all viewers" if self.session.speaks_for_all else " (here only)"
