"""What a boot runs is told once, without secrets, within bounds, and whatever is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.machine import provenance
from esper_overwatch.protocol.machine.provenance import (
    MASK,
    MAX_CHARACTERS,
    ProvenanceReport,
    chosen_variables,
    command_words,
    installed_packages,
)
from esper_overwatch.protocol.messages.events import Context, RunProvenance


def collect() -> list[object]:
    told: list[object] = []
    report = ProvenanceReport(told.append)
    report.close()
    return told


def test_report_tells_what_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (told,) = collect()
    assert isinstance(told, RunProvenance)
    assert told.command == command_words(sys.orig_argv)
    assert (told.folder, told.executable) == (str(tmp_path), sys.executable)
    assert told.python.endswith(platform.python_version())
    assert told.packages["msgspec"] == version("msgspec")
    assert told.environment["OMP_NUM_THREADS"] == "3"


def test_start_goes_on_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    (told,) = collect()
    assert isinstance(told, RunProvenance)
    assert told.folder == ""


def test_what_cannot_be_collected_ends_no_run(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(provenance, "installed_packages", lambda _: 1 / 0)
    assert collect() == []
    assert "the run goes on" in caplog.text


def test_secrets_and_other_variables_are_left_out() -> None:
    kept = {"CUDA_VISIBLE_DEVICES": "0", "ESPER_HOME": "/h", "PYTHONHASHSEED": "0", "TORCH_LOGS": "x"}
    secret = {"ESPER_LEASE": "s", "ESPER_API_KEY": "s", "TORCH_TOKEN": "s", "OMP_PASSWORD": "s"}
    assert chosen_variables({**secret, "HOME": "/root", "EDITOR": "vi", **kept}) == kept


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run", "--api-key", "s", "-x"], ["run", "--api-key", MASK, "-x"]),
        (["--hf_token=s", "wandb.key=s"], [f"--hf_token={MASK}", f"wandb.key={MASK}"]),
        (["--PASSWORD", "s", "t"], ["--PASSWORD", MASK, "t"]),
        (["--key", "--seed=1"], ["--key", "--seed=1"]),
        (["--tokenizer", "bpe", "task.tokens=bpe", "monkey=1"], None),
        (["train.py", "token", "key"], None),
    ],
)
def test_values_of_secret_options_are_masked(words: list[str], shown: list[str] | None) -> None:
    assert command_words(words) == (shown or words)


def test_what_is_long_is_bounded_and_fits_json() -> None:
    words = command_words([os.fsdecode(b"a\xff"), *["x" * 1_000] * 100])
    assert words[0] == "a\\udcff"
    assert words[-1] == "..."
    assert sum(map(len, words)) <= MAX_CHARACTERS + 16
    assert chosen_variables({"OMP_A": "x", "OMP_B": "x" * MAX_CHARACTERS}) == {"OMP_A": "x"}
    event = RunProvenance(
        command=words, folder="", python="", executable="", packages={}, environment={"A": "\\udcff"}
    )
    assert encode_event(1, 1, Context(), event)


def test_packages_are_those_that_are_imported(tmp_path: Path) -> None:
    names = ("Big_Thing-1.0+cpu.dist-info", "small-2.0-py3.11.egg-info", "unversioned.egg-info", "other.py")
    for name in names:
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "b" / "big_thing-0.9.dist-info").mkdir(parents=True)
    found = installed_packages([str(tmp_path / each) for each in ("a", "b", "absent", "a/other.py")])
    found.pop("esper-overwatch")
    assert found == {"big-thing": "1.0+cpu", "small": "2.0"}
