"""What git says about the code, by real repositories; and about programs called git that do not answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from esper_overwatch.protocol.machine.git import read_code_state


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@box", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *identity, *words], cwd=folder, text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, of train.py and an image."""
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "train.py").write_text("RATE = 0.001\n")
    (folder / "image").write_bytes(bytes(range(256)))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


@pytest.fixture
def write_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path at which a program named git is found before any other."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "git"


def install(path: Path, program: str) -> None:
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)


def test_clean_tree_has_a_commit_and_no_difference(repository: Path) -> None:
    (repository / "notes").write_text("git does not know it")
    code = read_code_state(repository)
    assert code.commit == git(repository, "rev-parse", "HEAD")
    assert (code.dirty, code.diff, code.diff_cut, code.missing) == (False, [], False, "")


def test_changed_tree_has_the_whole_difference(repository: Path) -> None:
    """Whatever the user's configuration says of its form, and from a folder inside, too."""
    git(repository, "config", "diff.relative", "true")
    git(repository, "config", "color.diff", "always")
    (repository / "train.py").write_text("RATE = 0.003\x1b\n")
    (repository / "image").write_bytes(b"\0")
    git(repository, "add", "image")
    code = read_code_state(repository / "inner")
    assert code.dirty is True
    assert code.diff[-2:] == ["-RATE = 0.001", "+RATE = 0.003\ufffd"]
    assert "Binary files a/image and b/image differ" in code.diff


def test_index_is_not_written(repository: Path) -> None:
    (repository / "train.py").write_text("RATE = 0.001\n")  # as it was: git would note its new time
    os.utime(repository / "train.py", (1, 1))
    before = (repository / ".git/index").read_bytes()
    assert read_code_state(repository).dirty is False
    assert (repository / ".git/index").read_bytes() == before


def test_long_difference_is_cut_at_a_line(repository: Path) -> None:
    (repository / "train.py").write_text("".join(f"line {i}\n" for i in range(1_000)))
    whole = read_code_state(repository)
    assert not whole.diff_cut
    cut = read_code_state(repository, max_bytes=400)
    assert cut.diff_cut
    assert cut.dirty
    assert cut.diff == whole.diff[: len(cut.diff)]
    assert 300 < len("\n".join(cut.diff)) < 400


def test_what_is_missing_is_said(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "in no git repository" in read_code_state(tmp_path).missing
    git(tmp_path, "init", "--quiet", "empty")
    assert "that has a commit" in read_code_state(tmp_path / "empty").missing
    assert "working directory is gone" in read_code_state(tmp_path / "gone").missing
    monkeypatch.setenv("PATH", str(tmp_path))
    code = read_code_state(repository)
    assert (code.commit, code.dirty) == ("", None)
    assert "git is not installed" in code.missing


def test_git_that_hangs_is_left(repository: Path, write_git: Path) -> None:
    install(write_git, "import time; time.sleep(600)")
    assert "did not answer within 0.2 s" in read_code_state(repository, seconds=0.2).missing


def test_difference_that_never_comes_leaves_the_commit(repository: Path, write_git: Path) -> None:
    hang = "import sys, time; sys.stdout.flush(); time.sleep(600)"
    install(write_git, f"import sys\nif 'diff' in sys.argv:\n    {hang}\nprint('c0ffee')")
    code = read_code_state(repository)
    assert (code.commit, code.dirty, code.missing) == ("c0ffee", None, "git diff took too long")


def test_endless_difference_is_cut(repository: Path, write_git: Path) -> None:
    install(
        write_git, "import sys\nwhile True:\n    print('+x' if 'diff' in sys.argv else sys.exit(print('c')))"
    )
    code = read_code_state(repository, seconds=60)
    assert (code.commit, code.dirty, code.diff_cut) == ("c", True, True)
    assert set(code.diff) == {"+x"}
