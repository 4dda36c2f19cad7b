"""Examples of messages: made from the types, and never in place of one that is there."""

from __future__ import annotations

from tools.message_examples import complete_corpus, corpus, example


def test_completing_changes_no_line_that_is_there() -> None:
    before = corpus()
    complete_corpus()
    assert corpus() == before, "run: python -m tools.protocol_page"


def test_examples_of_hard_types() -> None:
    assert example(list[list[float | None]]) == [[0.5]]
    assert example(dict[str, int]) == {"key": 1}
