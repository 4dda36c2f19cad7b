"""Keys that open a line to type in: a filter of the list, and the palette, which the help is, too."""

from __future__ import annotations

import json
import time
from functools import partial

from esper_overwatch.overwatch_tui.keys import ANY_TEXT, Key
from esper_overwatch.overwatch_tui.model.command_line import (
    CommandLineError,
    LoopCommands,
    Parsed,
    complete,
    explain,
    known_methods,
    parse_line,
    read_loop_commands,
)
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP, LEGEND
from esper_overwatch.overwatch_tui.screens.input_line import type_filter
from esper_overwatch.overwatch_tui.screens.page import AnswerScreen
from esper_overwatch.overwatch_tui.screens.palette import PaletteRow, PaletteScreen
from esper_overwatch.overwatch_tui.settings.table import DEFAULT, SETTINGS, BadSetting, format_value
from esper_overwatch.overwatch_tui.source.state_files import HistoryFile
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.client.stack_profile import SAMPLES_PER_SECOND, StackProfile
from esper_overwatch.protocol.codec.readable import format_result
from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.messages.commands import METHODS

from .commands import CommandActions, Question
from .display import DisplayActions

STACK_SECONDS = 3.0
"""For which a run's threads are looked at."""


class LineActions(DisplayActions, CommandActions):
    """Filters, and the palette of all that can be done."""

    def on_mount(self) -> None:
        self.session.view.is_new = not HistoryFile().lines()

    def action_filter(self) -> None:
        """Type the filter of the list that moves act on; an empty one shows all."""
        panel = self._panel()
        fields = self.panels[panel].fields(self.body)
        if not fields:
            self.say(f"the rows of {panel} cannot be filtered")
            return
        such_as = (
            "such as acc<60 st:roll -text" if panel == "envs" else "FIELD:text FIELD>number -turned word"
        )
        type_filter(self, self.session.view, panel, fields, such_as, self.palette, self.paint)

    def action_palette(self, text: str = "") -> None:
        """Search and execute anything; a key of an action that needs a value begins with its name."""
        self._open_palette(text, is_help=False)

    def action_help(self) -> None:
        """What the fields of this view mean, then all that can be done."""
        self._open_palette("", is_help=True)

    def _open_palette(self, text: str, *, is_help: bool) -> None:
        history, run_id, view = HistoryFile(), self.session.feed.run_id, self.session.view
        loop = {} if view.read_only else read_loop_commands(self.session.state.loop_commands)
        actions = {key.name: key for key in self._actions()}
        methods = [
            name
            for name in (known_methods(answered=self.session.link.methods) if self.is_connected else ())
            if METHODS[name].socket == "qry" or not view.read_only
        ]
        entries = [
            PaletteRow(name, key.help, key.shown, is_ready=not key.values) for name, key in actions.items()
        ]
        entries += [PaletteRow(name, self._setting_words(name)) for name in SETTINGS if name not in actions]
        entries += [PaletteRow(each.name, f"{each.usage}  {each.effect}".lstrip()) for each in loop.values()]
        offered = {entry.name for entry in entries}
        entries += [PaletteRow(name, METHODS[name].effect) for name in methods if name not in offered]
        if is_help:
            shown = [PaletteRow(name, about, is_field=True) for name, about in self._fields()]
            title, can_do = f"{self._panel()}: its fields", "what can be done; type to search"
            entries = [
                PaletteRow(title, "", is_heading=True),
                *shown,
                PaletteRow(can_do, "", is_heading=True),
                *entries,
            ]

        def take(text: str | None) -> None:
            if text is not None and text.strip():
                view.is_new = False
                if not self.is_web:
                    history.add(text)
                self._execute(text.strip(), actions, loop, run_id)
            self.paint()

        names = [entry.name for entry in entries if not (entry.is_field or entry.is_heading)]
        screen = PaletteScreen(
            entries,
            partial(self._explained, actions=actions, loop=loop),
            self.palette,
            view.glyphs,
            complete=partial(self._completed, names=names, actions=actions, loop=loop),
            text=text,
            history=history.lines(),
            check=partial(self._problem, actions=actions, loop=loop),
        )
        self.push_screen(screen, take)

    def _actions(self) -> list[Key]:
        """Actions that this run and this terminal have."""
        state, view = self.session.state, self.session.view
        of_trainings = ("env",) if state.is_published else ()
        return [
            key
            for key in view.keys
            if not (view.read_only and key.is_command)
            and key.hint not in state.missing_commands
            and key.name not in of_trainings
        ]

    def _fields(self) -> list[tuple[str, str]]:
        """What is shown and what it means, then what one sees where something is wrong."""
        about = FIELD_HELP.get(self._panel())
        return [*LEGEND] if about is None else [*about.fields, *LEGEND, *about.diagnosis]

    def _setting_words(self, name: str) -> str:
        value, source = self.settings.chosen[name]
        return f"{format_value(value)} ({source}): {SETTINGS[name].help}"

    def _explained(self, text: str, *, actions: dict[str, Key], loop: LoopCommands) -> str:
        """Explanation of the line so far."""
        text = _whole(text)
        name, space, rest = text.lstrip().partition(" ")
        if name in SETTINGS and (space or name not in actions):
            setting = SETTINGS[name]
            kept = "" if setting.is_live else " From the next start on."
            return f"{self._setting_words(name)} {setting.allowed}, or {DEFAULT}.{kept}"
        if name in actions and (name not in METHODS or not rest):
            return actions[name].help
        return explain(text, loop)

    def _completed(
        self, text: str, *, names: list[str], actions: dict[str, Key], loop: LoopCommands
    ) -> list[str]:
        """Lines that the last word can become."""
        name, space, rest = text.partition(" ")
        if not space:
            return complete(text, names)
        if name in SETTINGS:
            values = [*map(format_value, SETTINGS[name].choices), DEFAULT]
            return [f"{name} {value}" for value in values if value.startswith(rest)]
        if name in actions:
            return [
                f"{name} {each}"
                for each in actions[name].values
                if each.startswith(rest) and each != ANY_TEXT
            ]
        return complete(text, names, loop)

    def _problem(self, text: str, *, actions: dict[str, Key], loop: LoopCommands) -> str:
        """What is wrong with a line that is to be executed; empty = nothing."""
        text = _whole(text)
        name, _, rest = text.strip().partition(" ")
        try:
            if name in SETTINGS and (rest or name not in actions):
                if not rest:
                    return self._setting_words(name)
                if rest != DEFAULT:
                    SETTINGS[name].parse(rest, name)
                return ""
            if name in actions and name not in METHODS:
                return _problem_with(actions[name], rest)
            parsed = parse_line(text, loop)
        except (BadSetting, CommandLineError) as error:
            return str(error)
        if parsed is None:
            return ""
        if self.session.view.read_only and not parsed.is_query:
            return f"{parsed.method} is a command, and this terminal is read-only"
        return ""

    def _execute(self, text: str, actions: dict[str, Key], loop: LoopCommands, run_id: str | None) -> None:
        name, _, rest = _whole(text).partition(" ")
        if name in SETTINGS and (rest or name not in actions):
            self.change_setting(name, rest)
        elif name in actions and name not in METHODS:
            action = f"{actions[name].action}({rest!r})" if rest else actions[name].action
            self.call_later(self.run_action, f"app.{action}")
        else:
            parsed = parse_line(text, loop)
            if parsed is not None and self.can_send(parsed.method, run_id):
                self._carry_out(parsed, text)

    def _carry_out(self, parsed: Parsed, text: str) -> None:
        if parsed.method == "stacks":
            self._watch_stacks(text, self.session.feed.run_id)
        elif parsed.is_query:
            self.session.ask(parsed.method, parsed.params, lambda reply: self._show_answer(text, reply))
        elif parsed.method == "stop":
            self.ask_name(parsed.params)
        elif parsed.method not in METHODS:
            words = " ".join(f"{name}={json.dumps(value)}" for name, value in parsed.params.items())
            question = f"Send {parsed.method} {words}".rstrip() + "?"
            self._confirm(
                Question(parsed.method, parsed.params, question, "when the loop next looks for commands")
            )
        else:
            self.send_command(parsed.method, parsed.params)

    def _show_answer(self, text: str, reply: RequestOutcome) -> None:
        if reply.error is not None:
            self.show_message(clean_text(f"{text}: {reply.error}"))
        else:
            lines = format_result(reply.result or {})
            self.push_screen(AnswerScreen(f":{text}", lines, self.palette))

    def _watch_stacks(self, text: str, run_id: str | None) -> None:
        """Ask again and again what the run's threads do, then show the shares."""
        profile, begun = StackProfile(), time.monotonic()
        self.show_message(f"{text}: looking for {STACK_SECONDS:.0f} s")

        def ask() -> None:
            if self.can_send(text, run_id):
                self.session.ask("stacks", {}, take)

        def take(reply: RequestOutcome) -> None:
            if reply.error is not None:
                self.show_message(clean_text(f"{text}: {reply.error}"))
                return
            profile.seconds = time.monotonic() - begun
            profile.add((reply.result or {})["threads"])
            if profile.seconds < STACK_SECONDS:
                self.set_timer(1 / SAMPLES_PER_SECOND, ask)
                return
            self.show_message("")
            self.push_screen(AnswerScreen(f":{text}", list(profile.tree()), self.palette))

        ask()


def _whole(text: str) -> str:
    """The line that is meant: a number alone is an env's."""
    return f"env {text.strip()}" if text.strip().isdecimal() else text


def _problem_with(key: Key, rest: str) -> str:
    """What is wrong with what follows an action's name."""
    if key.values == (ANY_TEXT,):
        return "" if rest else f"{key.name} what? {key.help}"
    if key.values:
        return "" if rest in key.values else f"{key.name} takes one of {', '.join(key.values)}"
    return f"{key.name} takes nothing after it" if rest else ""
