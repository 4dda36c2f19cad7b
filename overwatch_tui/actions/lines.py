"""Keys that open a line to type in: a filter of the list, a command for the daemon."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.command_line import (
    CommandLineError,
    Parsed,
    complete,
    explain,
    known_methods,
    parse_line,
)
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.codec.text import clean_text

from .commands import CommandActions
from .moves import MoveActions


class LineActions(MoveActions, CommandActions):
    """Filters and the command line."""

    def action_filter(self) -> None:
        """Type the filter of the list that moves act on; an empty one shows all."""
        from esper_overwatch.overwatch_tui.screens.input_line import type_filter

        panel = self._panel()
        fields = self.panels[panel].renderer.fields(self.body)
        if not fields:
            self.say(f"the rows of {panel} cannot be filtered")
            return
        such_as = (
            "such as acc<60 st:roll -text" if panel == "envs" else "FIELD:text FIELD>number -turned word"
        )
        type_filter(self, self.session.view, panel, fields, such_as, self.palette, self.paint)

    def action_command_line(self) -> None:
        """Type a method of the daemon and its parameters."""
        from esper_overwatch.overwatch_tui.screens.input_line import InputLine
        from esper_overwatch.overwatch_tui.source.state_files import HistoryFile

        link, run_id = self.session.link, self.session.feed.run_id
        if not self.is_connected:
            self.say(f"no daemon is connected that could take a command ({link.label})")
            return
        history = HistoryFile()
        loop = self.session.state.loop_commands
        methods = known_methods(loop, answered=link.methods)

        def check(text: str) -> str:
            try:
                parsed = parse_line(text, loop)
            except CommandLineError as error:
                return str(error)
            if parsed is not None and self.session.view.read_only and not parsed.is_query:
                return f"{parsed.method} is a command, and this terminal is read-only"
            return ""

        def take(text: str | None) -> None:
            parsed = None if text is None else parse_line(text, loop)
            if text is not None and parsed is not None:
                if not self.is_web:
                    history.add(text)
                if self.can_send(parsed.method, run_id):
                    self._carry_out(parsed, text.strip())
            self.paint()

        line = InputLine(
            ":",
            explain,
            self.palette,
            self.session.view.glyphs,
            complete=lambda text: complete(text, methods),
            history=history.lines(),
            check=check,
        )
        self.push_screen(line, take)

    def _carry_out(self, parsed: Parsed, text: str) -> None:
        if parsed.is_query:
            self.session.ask(parsed.method, parsed.params, lambda reply: self._show_answer(text, reply))
        elif parsed.method == "stop":
            self.ask_name(parsed.params)
        else:
            self.send_command(parsed.method, parsed.params)

    def _show_answer(self, text: str, reply: RequestOutcome) -> None:
        from esper_overwatch.overwatch_tui.screens.page import AnswerScreen

        if reply.error is not None:
            self.show_message(clean_text(f"{text}: {reply.error}"))
        else:
            self.push_screen(AnswerScreen(f":{text}", reply.result or {}, self.palette))
