"""Texts by byte-pair encoding: learnt on the training part, the same in every run, encoded once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from esper_overwatch.protocol.extras import install_command, missing_extra
from esper_overwatch.trainer.data import text as text_module
from esper_overwatch.trainer.data import token_cache
from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.registrations import DatasetContents
from esper_overwatch.trainer.data.registry import load, register
from esper_overwatch.trainer.data.text import Text, TextOptions
from esper_overwatch.trainer.data.text_file import TextFile, split_pieces
from esper_overwatch.trainer.data.tokenizer import END_OF_TEXT, BpeTokenizer, CharacterTokenizer, alphabet_of

torch.set_num_threads(1)
BPE = TextOptions("bpe", 400)
STORY = "Once upon a time there was a little girl named Lily. She liked to play.\n<|endoftext|>\n"


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A file in the form of TinyStories."""
    path = tmp_path / "stories.txt"
    path.write_text("".join(f"{STORY}{i} ducks swam. " for i in range(60)), encoding="utf-8")
    return path


def read(path: Path, options: TextOptions = BPE, context: int = 8) -> Text:
    text = load("text", folder=str(path), context=context, text=options)
    assert isinstance(text, Text)
    return text


def cached(home: Path) -> Path:
    (folder,) = (path for path in (home / "datasets" / "tokens").iterdir() if path.is_dir())
    return folder


def test_tokens_are_the_text(stories: Path, home: Path) -> None:
    text, content = read(stories), stories.read_text()
    inner = Tokenizer.from_file(str(cached(home) / "tokenizer.json"))
    parts = [text.train, text.val, text.test]
    said = [inner.decode(part.tolist(), skip_special_tokens=False) for part in parts]
    assert "".join(said) == content
    assert tuple(map(len, said)) == text.characters
    assert 257 < text.classes == inner.get_vocab_size() <= 400
    assert torch.equal(text.counts, torch.bincount(text.train, minlength=text.classes))
    end = inner.token_to_id(END_OF_TEXT)
    assert text.counts[end] == said[0].count(END_OF_TEXT) > 40
    assert text.tokens_per_character == len(text.val) / text.characters[1] < 0.6
    assert text.train.dtype == torch.int16


def test_it_is_learnt_on_the_training_part_alone(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "late.txt"
    path.write_text("the cat sat on the mat. " * 400 + "zyzzyva " * 200)
    read(path, TextOptions("bpe", 1000))
    words = Tokenizer.from_file(str(cached(home) / "tokenizer.json")).get_vocab()
    assert any("cat" in word for word in words)
    assert not any("zy" in word for word in words)


LEARN = """
import sys
from pathlib import Path
from esper_overwatch.trainer.data.text_file import TextFile
from esper_overwatch.trainer.data.tokenizer import BpeTokenizer
print(BpeTokenizer.train(TextFile(Path(sys.argv[1])).pieces(), 500).dumps())
"""


def test_byte_pairs_of_a_long_text_are_its_beginnings(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("the cat sat on the mat. " * 400 + "zyzzyva " * 4000)
    monkeypatch.setattr(token_cache, "MAX_LEARNT", 9000)
    monkeypatch.setattr(token_cache, "LONG_TEXT", 30_000)
    text = read(path, TextOptions("bpe", 1000))
    words = Tokenizer.from_file(str(cached(home) / "tokenizer.json")).get_vocab()
    assert not any("zy" in word for word in words)
    assert (text.counts > 0).sum() > 10
    (line,) = caplog.messages
    assert line.startswith(f"{path}: 0 million characters are encoded once")
    read(path, TextOptions("bpe", 1000))
    assert len(caplog.messages) == 1, "only where they are"


@pytest.mark.slow
def test_each_process_learns_the_same(stories: Path) -> None:
    made = []
    for threads in ("1", "4"):
        variables = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        words = [sys.executable, "-c", LEARN, str(stories)]
        made.append(subprocess.run(words, env=variables, capture_output=True, check=True).stdout)
    assert made[0] == made[1]
    assert len(json.loads(made[0])["model"]["vocab"]) > 257


def test_a_text_is_encoded_once(stories: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = read(stories)
    monkeypatch.setattr(token_cache, "_write", None)
    again = read(stories, context=16)
    for part in ("train", "val", "test", "counts"):
        assert torch.equal(getattr(one, part), getattr(again, part))
    assert again.context == 16
    with pytest.raises(TypeError):
        read(stories, TextOptions("bpe", 300))
    stories.write_text(stories.read_text() + "One more. " * 30)
    with pytest.raises(TypeError):
        read(stories)


def test_two_at_once_encode_a_text_once(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, writers = threading.Event(), []
    read_cache, write = token_cache._read, token_cache._write

    def read_and_tell(folder: Path) -> token_cache.EncodedText | None:
        found = read_cache(folder)
        if threading.current_thread() is not threading.main_thread():
            looked.set()
        return found

    def write_beside(*given: Any) -> None:
        writers.append(threading.current_thread())
        if len(writers) == 1:
            others.append(thread.submit(read, stories))
            assert looked.wait(60)
        write(*given)

    monkeypatch.setattr(token_cache, "_read", read_and_tell)
    monkeypatch.setattr(token_cache, "_write", write_beside)
    others: list[Future[Text]] = []
    with ThreadPoolExecutor(1) as thread:
        mine = read(stories)
        assert torch.equal(others[0].result().train, mine.train)
    assert writers == [threading.main_thread()]


@pytest.mark.parametrize("file", ["train", "counts", "contents.json"])
def test_damaged_tokens_are_made_again(stories: Path, home: Path, file: str) -> None:
    text = read(stories)
    train, counts = text.train.clone(), text.counts.clone()
    path = cached(home) / file
    path.write_bytes(path.read_bytes()[:-3])
    again = read(stories)
    assert torch.equal(train, again.train)
    assert torch.equal(counts, again.counts)


def test_without_the_library_it_is_said_in_one_line(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        read(stories)
    needed = f"tokenizers is not installed; install it with: {install_command('text')}"
    assert str(missing_extra(caught.value)) == needed
    assert read(stories, TextOptions()).tokens == "characters"


def test_large_texts_are_mapped_and_equal_small_ones(
    stories: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = read(stories, TextOptions())
    assert not home.exists(), "what fits into memory leaves nothing behind"
    monkeypatch.setattr(text_module, "MAX_IN_MEMORY", 100)
    large = read(stories, TextOptions())
    assert (large.alphabet, large.characters) == (small.alphabet, small.characters)
    for part in ("train", "val", "test", "counts"):
        assert torch.equal(getattr(large, part).long(), getattr(small, part).long())
    windows = [text.examples("train", torch.float32) for text in (small, large)]
    index, keys = torch.tensor([[0, 5, 9]]), torch.tensor([7])
    for one, other in zip(*(each.batch(index, keys) for each in windows), strict=True):
        assert torch.equal(one, other)
    assert (cached(home) / "train").stat().st_size == 2 * len(large.train)


def test_a_registered_text_has_the_same_contents_by_any_tokens(stories: Path) -> None:
    holds = register("stories", stories).holds
    for options in (TextOptions(), BPE):
        assert DatasetContents.of(load("stories", context=8, text=options)) == holds
    assert holds.train == len(stories.read_text()) - holds.val - holds.test


def test_a_context_beyond_the_tokens_counts_tokens(stories: Path) -> None:
    tokens = len(read(stories).val)
    with pytest.raises(DataError, match=rf"part has {tokens} tokens, too few for task.context = 500"):
        read(stories, context=500)


def test_the_loss_of_a_guess_is_comparable_by_character(stories: Path) -> None:
    """Per character no encoding says less than the entropy of what it has merged."""
    by_character, by_pairs = read(stories, TextOptions()), read(stories)
    assert by_character.tokens_per_character == 1
    each = [math.log(text.perplexity) * text.tokens_per_character for text in (by_character, by_pairs)]
    assert each[1] < each[0]


@given(content=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), limit=st.integers(1, 9))
def test_pieces_of_a_file_are_its_characters(
    tmp_path_factory: pytest.TempPathFactory, content: str, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content.encode())
    expected = content.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if expected.strip():
        assert "".join(TextFile(path).pieces()) == expected
        assert TextFile(path).measure().characters == len(expected)
    sizes = (limit, limit, max(0, len(expected) - 2 * limit))
    parts = ["", "", ""]
    for part, piece in split_pieces([expected[at : at + 3] for at in range(0, len(expected), 3)], sizes):
        parts[part] += piece
    assert parts == [expected[:limit], expected[limit : 2 * limit], expected[2 * limit :]]
    alphabet = alphabet_of([expected])
    tokens = CharacterTokenizer(alphabet).encode(expected)
    assert "".join(alphabet[token - 1] for token in tokens) == expected


def test_bytes_that_were_never_seen_are_no_unknown_token() -> None:
    tokenizer = BpeTokenizer.train(["a b c " * 50], 260)
    tokens = tokenizer.encode("ξ€\x00 🙂")
    assert len(tokens) == len("ξ€\x00 🙂".encode())
    assert tokens.dtype == np.int64
    assert len(BpeTokenizer.train(["a b c " * 50], 260).encode("")) == 0
