"""Text for terminals: what is not printable never gets through, and what is stays as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.text import clean_cells, clean_lines, clean_text, escape_json

HOSTILE = "evil\x1b]0;owned\x07\x1b[2J\r\nroot\x00\x7f\x9b31m\u202e\u2028\u200b\udc9b"


@given(st.text())
@pytest.mark.parametrize("clean", [clean_text, clean_cells])
def test_cleaned_text_is_one_printable_line(clean: object, text: str) -> None:
    assert callable(clean)
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_clean_text_shows_what_it_found() -> None:
    assert clean_text("\x1b]0;owned\x07\r\n") == r"\x1b]0;owned\x07\r\n"
    assert clean_text("\x9b\u202e\udc9b") == r"\x9b\u202e\udc9b"
    assert clean_text("Zoë, 漢字: ⣿ ok") == "Zoë, 漢字: ⣿ ok"


def test_clean_lines_indents_all_but_the_first() -> None:
    assert (
        clean_lines("12:00 INFO a\x1b[2J\n12:01 INFO forged\r")
        == "12:00 INFO a\\x1b[2J\n    12:01 INFO forged\\r"
    )


def test_clean_cells_replaces_escapes_wide_and_combining_characters() -> None:
    assert clean_cells("\x1b]0;owned\x07") == "?]0;owned?"
    assert clean_cells("a\nb\tc\u202e") == "a?b?c?"
    assert clean_cells("\u6f22e\u0301") == "?e?"
    assert clean_cells("↑ ⣿ █ ×") == "↑ ⣿ █ ×"


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)))
def test_escaped_json_is_printable_and_says_the_same(value: object) -> None:
    document = escape_json(json.dumps(value, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == value


def test_json_with_line_breaks_between_documents_keeps_them() -> None:
    assert escape_json('{"a":"\x9b"}\n{"b":"\U000e0001"}') == '{"a":"\\u009b"}\n{"b":"\\udb40\\udc01"}'
