"""Texts: splits, windows, unknown characters, the shipped one, and files that are none."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch

from esper_overwatch.trainer.data.batches import Batches
from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.registrations import DatasetContents
from esper_overwatch.trainer.data.registry import list_datasets, load, register
from esper_overwatch.trainer.data.text import MAX_TEST, MAX_VALIDATION, UNKNOWN, Text, Windows

torch.set_num_threads(1)
LETTERS = "abcdefghij" * 100


def spelled(text: Text, tokens: torch.Tensor) -> str:
    return "".join("?" if token == UNKNOWN else text.alphabet[token - 1] for token in tokens.tolist())


def test_the_parts_are_the_text_in_its_order() -> None:
    words = "".join(chr(97 + i % 26) for i in range(1000))
    text = Text.of("t", words, 8)
    assert spelled(text, torch.cat([text.train, text.val, text.test])) == words
    assert (len(text.train), len(text.val), len(text.test)) == (800, 100, 100)
    long = Text.of("t", "ab" * 1_000_000, 8)
    assert (len(long.val), len(long.test)) == (MAX_VALIDATION, MAX_TEST)


def test_what_the_training_part_does_not_have_is_unknown() -> None:
    text = Text.of("t", "ab" * 450 + "aξb" * 33 + "ξ", 8)
    assert text.alphabet == "ab"
    assert text.classes == 3
    assert spelled(text, text.test).count("?") == 34
    assert (text.train != UNKNOWN).all()


def test_labels_are_the_characters_that_follow() -> None:
    text = Text.of("t", LETTERS, 7)
    for part in (text.examples("val", torch.float32), text.examples("test", torch.float32)):
        x, labels = part.span(2, 5)
        assert x.shape == (3, 1, 7, 1)
        assert torch.equal(labels.view(3, 7)[:, :-1], x[:, 0, 1:, 0])
        every, _ = part.span(0, 10**6)
        assert len(every) == len(part) == part.answers // 7 == 99 // 7
        assert spelled(text, every.flatten()) == LETTERS[: len(part) * 7]


def test_batches_begin_anywhere_and_stay_within_the_training_part() -> None:
    text = Text.of("t", LETTERS, 7)
    windows = text.examples("train", torch.float32)
    batches = Batches(windows, torch.arange(3), 1, 40)
    starts = set()
    for step in range(20):
        x, labels = batches.at(1, step)
        assert x.shape == (40, 3, 7, 1)
        assert labels.shape == (3, 280)
        followed = labels.view(3, 40, 7).transpose(0, 1)
        assert torch.equal(followed[..., :-1], x[:, :, 1:, 0])
        starts |= set(x[:, :, 0, 0].flatten().tolist())
    assert len(starts) == 10, "with windows side by side a period of 10 and a width of 7 would do as well"
    last = torch.full((1, 64), len(windows) - 1)
    for key in range(50):
        windows.batch(last, torch.tensor([key]))


def test_a_batch_depends_on_seed_env_round_and_step_alone() -> None:
    text = load("text")

    def at(envs: list[int], seed: int = 1, round_: int = 2, step: int = 3) -> torch.Tensor:
        batches = Batches(text.examples("train", torch.float32), torch.tensor(envs), seed, 4)
        return batches.at(round_, step)[0]

    assert torch.equal(at([5])[:, 0], at([2, 5, 9])[:, 1])
    others = [at([6]), at([5], seed=2), at([5], round_=3), at([5], step=4)]
    assert not any(torch.equal(at([5]), other) for other in others)
    shared = Batches(text.examples("train", torch.float32), torch.arange(3), 1, 4, shared=True)
    x, labels = shared.at(1, 0)
    assert x.shape == (4, 1, 32, 1)
    assert labels.shape == (3, 128)


def test_windows_of_width_one_cover_all_that_has_a_successor() -> None:
    assert len(Windows(torch.arange(10), 1)) == 9
    assert len(Windows(torch.arange(10), 3)) == 3
    assert len(Windows(torch.arange(10), 3, moving=True)) == 2


def test_chance_and_perplexity_are_of_who_counts_characters() -> None:
    text = Text.of("t", "aaab" * 500, 8)
    assert text.chance == pytest.approx(0.75)
    assert math.log(text.perplexity) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def test_the_shipped_text() -> None:
    text = load("text", context=32)
    assert isinstance(text, Text)
    assert text.shape == (1, 32, 1)
    assert 50 < text.classes < 100
    assert "Alice was beginning to get very tired" in spelled(text, text.train[:500])
    assert (text.val == UNKNOWN).float().mean() < 0.01
    assert "text" in {entry.name for entry in list_datasets() if entry.ready}


def test_own_text_file_may_have_any_line_ends(tmp_path: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_bytes("\ufeffzeile eins\r\nzeile zwei\rñ\n".encode() * 60)
    text = load("text", folder=str(one), context=16)
    assert isinstance(text, Text)
    assert "\r" not in text.alphabet
    assert "\n" in text.alphabet
    registration = register("mine", one)
    assert registration.format == "text"
    assert registration.holds == DatasetContents.of(load("mine", context=8))
    assert "characters (train, validation, test) of" in str(registration.holds)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "two.txt").write_bytes(gzip.compress(one.read_bytes()))
    register("two", folder)
    two = load("two", context=16)
    assert isinstance(two, Text)
    assert torch.equal(two.train, text.train)
    one.write_text("something else " * 100)
    with pytest.raises(DataError, match=r"holds .* characters.*registered with"):
        load("mine")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; name a file that has text in it"),
        (b" \n\n", "is empty"),
        (b"caf\xe9 " * 500, "is not UTF-8 text: byte 0xe9 at position 3"),
        ("too short".encode("utf-16"), "is not UTF-8 text: byte 0xff at position 0"),
        (b"short " * 50, "a text of 300 characters is too short for a context of 32: 340 are enough"),
    ],
)
def test_a_file_that_is_no_use_says_why(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    for attempt in (lambda: load("text", folder=str(path)), lambda: register("bad", path)):
        with pytest.raises(DataError) as caught:
            attempt()
        assert str(path) in str(caught.value)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_text_has_a_minimum_length() -> None:
    Text.of("t", "x" * 660, 64)
    with pytest.raises(DataError, match="too short"):
        Text.of("t", "x" * 649, 64)


def test_a_context_wider_than_the_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("some words " * 100)
    with pytest.raises(DataError, match=r"too few for task.context = 1000; lower it below 110"):
        load("text", folder=str(path), context=1000)


def test_folders_without_one_text_and_paths_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.txt file; name the file itself"):
        load("text", folder=str(tmp_path))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("words " * 200)
    with pytest.raises(DataError, match=r"2 texts, a\.txt and others; name the file itself"):
        load("text", folder=str(tmp_path))
    with pytest.raises(DataError, match="no such folder or file"):
        register("mine", tmp_path / "gone.txt")
    with pytest.raises(DataError, match="comes with the package"):
        register("text", tmp_path / "a.txt")
