"""Keys for anomalies: select, acknowledge, mute, try other limits."""

from __future__ import annotations

from functools import partial

from esper_overwatch.overwatch_tui.model.anomalies import MUTE_SECONDS, AnomalyRecord
from esper_overwatch.overwatch_tui.model.limit_preview import MOVING, LimitPreview, limit_signal
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.render.anomaly_rows import current_anomaly, listed_anomalies
from esper_overwatch.overwatch_tui.render.format import format_duration

from .base import PaintedApp


class AnomalyActions(PaintedApp):
    """Acknowledge, mute and select anomalies, and try other limits."""

    @property
    def _is_listed(self) -> bool:
        """True where the keys act on the listed anomalies; elsewhere they act on all of them."""
        return self.session.view.focus == "anomalies"

    def action_anomaly(self, by: int) -> None:
        """Select the next anomaly that waits, and its env."""
        view, waiting = self.session.view, self._waiting()
        if not waiting:
            is_all = not self._is_listed
            self.show_message("every anomaly is acknowledged" if is_all else "nothing in this list waits")
        else:
            chosen = [record.key for record in waiting]
            selected = view.selected.get("anomalies")
            at = chosen.index(selected) + by if selected in chosen else 0 if by > 0 else -1
            record = waiting[at % len(waiting)]
            view.selected["anomalies"] = record.key
            if record.env is not None:
                view.select("envs", record.env)
        self.paint()

    def _waiting(self) -> list[AnomalyRecord]:
        """Anomalies that `n` goes over; in a focused list only those that it shows."""
        waiting = self.session.state.anomalies.open_records(self.session.feed.now())
        if not self._is_listed:
            return waiting
        keys = {record.key for record in waiting}
        return [record for record in listed_anomalies(self.body) if record.key in keys]

    def _current(self) -> AnomalyRecord | None:
        """Present state of the record that `a` and `m` act on; one listed in the past may be chosen."""
        record = current_anomaly(self.body if self._is_listed else self.session.panel_inputs())
        return None if record is None else self.session.state.anomalies.get(record.key)

    def action_ack(self) -> None:
        record = self._current()
        if record is None or not record.is_waiting:
            self.show_message("nothing to acknowledge")
        else:
            self._acknowledge([record])
            self.session.view.selected.pop("anomalies", None)
            self.show_message(f"acknowledged {record.source} {record.kind}{self._for_whom()}")
        self.paint()

    def action_ack_all(self) -> None:
        waiting = self.session.state.anomalies.waiting()
        self._acknowledge(waiting)
        self.say(f"acknowledged {len(waiting)}{self._for_whom()}")

    def action_mute(self) -> None:
        record = self._current()
        if record is None or not (record.active or record.is_waiting):
            self.show_message("nothing to mute")
        else:
            now = self.session.feed.now()
            seconds = 0 if record.is_muted(now) else MUTE_SECONDS
            self.session.view.selected["anomalies"] = record.key  # the next press ends it
            self.session.state.anomalies.silence(record.key, now + seconds * SECOND if seconds else 0)
            if self.session.speaks_for_all:
                params = {"source": record.source, "kind": record.kind, "seconds": seconds}
                self.session.send("anomaly.mute", params)
            what = f"muted for {seconds // 60} minutes" if seconds else "no longer muted"
            self.show_message(f"{record.source} {record.kind} {what}{self._for_whom()}")
        self.paint()

    def action_limits(self) -> None:
        from esper_overwatch.overwatch_tui.screens.input_line import InputLine

        inputs = self.body
        record = current_anomaly(inputs)
        if self.session.view.name != "anomalies" or record is None:
            self.say("limits are tried in view 2, of the selected anomaly")
            return
        signal = limit_signal(record.source, record.kind)
        if signal is None or signal not in inputs.state.thresholds:
            self.say(f"no curve is kept that {record.kind} could be counted over")
            return
        preview = LimitPreview(inputs.state.thresholds[signal], inputs.state.curves.histories)
        old = preview.limit
        self.push_screen(
            InputLine(
                f"limits of {signal} ",
                partial(explain_limits, preview),
                self.palette,
                self.session.view.glyphs,
                text=f"{old.warning:g} {old.critical:g}",
                check=partial(_problem, preview),
            ),
            partial(self._try_limits, preview),
        )

    def _try_limits(self, preview: LimitPreview, text: str | None) -> None:
        """Judge by other limits in this terminal; the run keeps its own."""
        if text is None:
            return
        signal = preview.limit.signal
        if signal in MOVING:
            self.show_message(f"limits of {signal} follow {MOVING[signal]}: nothing is changed")
        else:
            found = preview.parse(text)
            self.session.tried_limits[signal] = found.warning, found.critical
            option = f"anomalies.{signal}={found.warning:g},{found.critical:g}"
            self.show_message(f"here only; of the run with its next start: --set {option}")
        self.paint()

    def _acknowledge(self, records: list[AnomalyRecord]) -> None:
        """Acknowledge here at once, and for all viewers as soon as the daemon has it."""
        for record in records:
            self.session.state.anomalies.ack(record.key, self.session.feed.now())
            if self.session.speaks_for_all:
                params = {
                    "source": record.source,
                    "kind": record.kind,
                    "since": 0 if record.is_of_viewer else record.first,
                    "severity": record.severity,
                }
                self.session.send("anomaly.acknowledge", params)

    def _for_whom(self) -> str:
        return " for all viewers" if self.session.speaks_for_all else " (here only)"


def explain_limits(preview: LimitPreview, text: str) -> str:
    """How often the typed limits would have raised an anomaly, and those in force."""
    try:
        limit = preview.parse(text)
    except ValueError as error:
        return str(error)
    new, old = preview.count(limit), preview.count(preview.limit)
    over = f"in {format_duration(preview.span / SECOND)} of {preview.num_curves} curves"
    return (
        f"would have raised {new.warnings} warnings, {new.criticals} critical {over}; "
        f"those in force {old.warnings}, {old.criticals}. Enter: here only"
    )


def _problem(preview: LimitPreview, text: str) -> str:
    try:
        preview.parse(text)
    except ValueError as error:
        return str(error)
    return ""
