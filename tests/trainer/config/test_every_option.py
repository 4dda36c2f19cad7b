"""Each option is flipped once: what it says changes in journals, files or answers, or is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from esper_overwatch.trainer.config.load import OPTIONS, convert
from tests.cases import nightly
from tests.e2e.conftest import open_house

from .forked_starts import ForkedStarts, Start
from .option_effects import BASES, COMMON, Elsewhere, Flip, workers
from .option_flips import FLIPS

ROOT = Path(__file__).parents[3]
Base = Callable[[str, tuple[str, ...]], Start]
KEYS = [key for key, flip in FLIPS.items() if isinstance(flip, Flip)]
FIRST = {key.partition(".")[0]: key for key in reversed(KEYS)}.values()
CASES = [key if key in FIRST else nightly(key) for key in KEYS]
"""CI flips the first option of each group, `make nightly` each of them."""


@pytest.fixture(scope="module")
def starts() -> Iterator[ForkedStarts]:
    with open_house() as house:
        yield ForkedStarts(house)


@pytest.fixture(scope="module")
def base(starts: ForkedStarts) -> Base:
    """The base run of a flip; those of several are the same run."""

    @cache
    def train(name: str, sets: tuple[str, ...]) -> Start:
        return starts.start((*COMMON, *BASES[name], *sets), workers(1) if name == "endless" else None)

    return train


def test_every_option_has_a_row() -> None:
    assert set(FLIPS) == set(OPTIONS), "tests/trainer/config/option_flips.py has a row for each option"


def test_flips_are_other_values_than_the_base_has() -> None:
    for key, flip in FLIPS.items():
        if isinstance(flip, Flip):
            given = dict(item.split("=", 1) for item in (*COMMON, *BASES[flip.base], *flip.with_))
            before = convert(key, given[key], "base") if key in given else OPTIONS[key].default
            assert convert(key, flip.value, "flip") != before, key


def test_what_is_shown_elsewhere_is_tested_there() -> None:
    for key, flip in FLIPS.items():
        if isinstance(flip, Elsewhere):
            path, _, name = flip.test.partition("::")
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, key


@pytest.mark.slow
@pytest.mark.parametrize("key", CASES)
def test_flip_changes_what_the_option_says(
    key: str, starts: ForkedStarts, base: Base, tmp_path: Path
) -> None:
    flip = FLIPS[key]
    assert isinstance(flip, Flip)
    value = flip.value
    if value == "TEXT_FILE":
        text = tmp_path / "other.txt"
        text.write_text("the quick brown fox jumps over the lazy dog.\n" * 400, encoding="utf-8")
        value = str(text)
    before = base(flip.base, flip.with_)
    flipped = starts.start((*COMMON, *BASES[flip.base], *flip.with_, f"{key}={value}"), flip.look)
    flip.shows(before, flipped)


@pytest.mark.slow
def test_runs_of_the_same_options_are_the_same(starts: ForkedStarts, base: Base) -> None:
    again = starts.start(COMMON)
    for name in ("epoch:train_loss", "epoch:op", "ppo.update:policy_loss", "drift:norm", "seed.stage:seed"):
        assert base("ppo", ()).column(name) == again.column(name)
        assert again.column(name)
