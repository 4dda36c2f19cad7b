"""Tables behind a detail: Enter opens them, and the layers open when an escalation from here has ended."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.render.view_state import MAIN_VIEW

from .charts import ChartActions

LAYERS = "layers"


class PageActions(ChartActions):
    """Opening, closing and sorting pages."""

    _ended: frozenset[str] | None = None
    """Escalations that have ended; None before the first look."""

    def _panel(self) -> str:
        return self.session.view.page.name or super()._panel()

    def action_enter(self) -> None:
        """Go from a detail to the table behind it, and from there to its charts."""
        view = self.session.view
        is_behind = view.detail and view.typing is None and not view.charts.names
        if view.page.close():
            if self.panels[self._panel()].renderer.charts(self.body):
                super().action_enter()
        elif is_behind and (page := self.panels[self._panel()].renderer.page(self.body)) in self.panels:
            view.page.name = page
        else:
            super().action_enter()
        self.paint()

    def action_next_panel(self, by: int) -> None:
        self.session.view.page.close()
        super().action_next_panel(by)

    def action_sort(self) -> None:
        orders = self.panels[self._panel()].renderer.orders
        if not orders:
            super().action_sort()  # type: ignore[misc]
            return
        column = self.session.view.page.cycle(self._panel(), len(orders))
        self.say(f"by {orders[column]}")

    def action_reverse(self) -> None:
        if not self.panels[self._panel()].renderer.orders:
            super().action_reverse()  # type: ignore[misc]
            return
        self.session.view.page.turn(self._panel())
        self.paint()

    def tick(self) -> None:
        super().tick()
        self._look_at_escalations()

    def _look_at_escalations(self) -> None:
        """Show what an escalation of this terminal has measured, where nothing else is open."""
        state, view = self.session.state, self.session.view
        asked = [c for c in state.commands.newest_first() if c.method == "telemetry.escalate"]
        ended = frozenset(c.id for c in asked if c.state == "DONE" and c.by == "me")
        before, self._ended = self._ended, ended
        if before is None or not ended - before or state.layers is None:
            return
        is_free = len(self.screen_stack) == 1 and not (view.detail or view.is_frozen or view.charts.names)
        if is_free and view.typing is None and self.panels.is_main(view.name):
            view.show_view(MAIN_VIEW)
            view.detail, view.page.name = True, LAYERS
        self.show_message("layers are measured: Enter in an env's page shows them")
        self.session.needs_paint = True
