"""The terminal: a timer drains the feed, keys change the view, the main screen shows the layout."""

from __future__ import annotations

import time

from .actions.base import DOUBLE_PRESS_SECONDS
from .actions.charts import ChartActions
from .actions.incidents import IncidentActions
from .actions.lines import LineActions
from .actions.mouse import MouseActions
from .actions.runs import RunActions
from .screens.main import MainScreen
from .session import Session
from .settings.sources import Settings, settings_path
from .start import RunChoice


class OverwatchApp(
    ChartActions,
    MouseActions,
    LineActions,
    IncidentActions,
    RunActions,
):
    """Overwatch over one session.

    Args:
        choice: the runs that can be opened in place of this one; None = all of this machine.
        settings: what the settings screen shows and changes; None = the defaults.
    """

    CSS_PATH = "app.tcss"

    def __init__(
        self,
        session: Session,
        *,
        colour: bool = True,
        theme: str = "dark",
        choice: RunChoice | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(session, colour=colour, theme=theme)
        self.choice = choice or RunChoice(read_only=session.view.read_only)
        self.settings = settings or Settings(settings_path())

    def on_main_screen_unknown_key(self, message: MainScreen.UnknownKey) -> None:
        if len(self.screen_stack) == 1:  # else it was typed for the screen that opened meanwhile
            self.say(f"no such key: {message.key}; ? helps")

    def action_help_quit(self) -> None:
        """ctrl+c: the second one within two seconds leaves."""
        now = time.monotonic()
        if now - self._interrupted < DOUBLE_PRESS_SECONDS:
            self.action_leave()
        self._interrupted = now
        self.say("ctrl+c again leaves (the run continues)")
