"""Keys for anomalies: select, acknowledge, mute."""

from __future__ import annotations

from .base import PaintedApp


class AnomalyActions(PaintedApp):
    """What an operator does with an anomaly."""

    def action_anomaly(self, by: int) -> None:
        """Select the next one that waits, and its env."""
        state, view = self.session.state, self.session.view
        waiting = state.anomalies.open_records(self.session.feed.now())
        if not waiting:
            self.show_message("every anomaly is acknowledged")
        else:
            chosen = [record.key for record in waiting]
            selected = view.selected.get("anomalies")
            at = chosen.index(selected) + by if selected in chosen else 0 if by > 0 else -1
            record = waiting[at % len(waiting)]
            view.selected["anomalies"] = record.key
            if record.env is not None:
                view.select("envs", record.env)
        self.paint()

    def action_ack(self) -> None:
        record = self.session.panel_inputs().current_anomaly
        if record is None or not record.is_waiting:
            self.show_message("nothing to acknowledge")
        else:
            self.session.state.anomalies.ack(record.key)
            self.session.view.selected.pop("anomalies", None)
            self.show_message(f"acknowledged {record.source} {record.kind} (here only)")
        self.paint()

    def action_ack_all(self) -> None:
        self.show_message(f"acknowledged {self.session.state.anomalies.ack_all()} (here only)")
        self.paint()

    def action_mute(self) -> None:
        record = self.session.panel_inputs().current_anomaly
        if record is None:
            self.show_message("nothing to mute")
        else:
            silent = self.session.state.anomalies.mute(record.key, self.session.feed.now())
            self.show_message(
                f"{record.source} {record.kind} {'muted for 10 minutes' if silent else 'no longer muted'}"
            )
        self.paint()
