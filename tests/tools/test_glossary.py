"""The glossary explains every code of the terminal, by the tables that the terminal draws from."""

from __future__ import annotations

import re
from pathlib import Path

from esper_overwatch.overwatch_tui.model.log_entries import ORIGINS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP, LEGEND
from esper_overwatch.overwatch_tui.render.env_rows import SHORT_OPS, STAGE_LETTERS
from esper_overwatch.overwatch_tui.render.format import NOT_MEASURED, SHORT_STAGE_NAMES
from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.governor import RollbackReason, VetoReason
from esper_overwatch.trainer.seeds.lifecycle import AUTOMATIC_GATES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "glossary.md"


def explained() -> set[str]:
    """The codes of the section, and the words of those that are several."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## On the screen\n")
    codes = set(re.findall(r"`([^`]+)`", section))
    return codes | {word.strip(",") for code in codes for word in code.split()}


def test_the_glossary_has_every_code_of_the_tables() -> None:
    codes = {NOT_MEASURED, *STAGE_LETTERS.values(), *SHORT_STAGE_NAMES.values(), *AUTOMATIC_GATES}
    codes |= {SHORT_OPS.get(op.name, op.name) for op in Op}
    codes |= {reason.name.lower() for kind in (RollbackReason, VetoReason) for reason in kind if reason}
    codes |= {tag for _, tag, _ in ORIGINS.values()}
    assert len(codes) > 45
    assert codes <= explained()


def test_the_glossary_has_every_capital_word_of_the_help() -> None:
    fields = [*LEGEND, *(field for panel in FIELD_HELP.values() for field in panel.fields)]
    words = {word for name, _ in fields for word in re.findall(r"\bd?[A-Z]{2,}\b", name)} - {"STAGE"}
    assert len(words) > 20
    assert words <= explained()
