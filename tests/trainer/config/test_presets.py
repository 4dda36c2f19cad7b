"""Every preset is a configuration that trains, and says what it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.trainer.config.first_options import FIRST_OPTIONS
from esper_overwatch.trainer.config.load import OPTIONS, load, load_sourced
from esper_overwatch.trainer.config.presets import UnknownPreset, presets
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.registry import load as dataset
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.data.text import Text
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.task_defaults import build_model, resolve_task_defaults
from tests.trainer.command import esper
from tests.trainer.hosts.plots import tiny

torch.set_num_threads(1)
IMAGES = {
    "digits": (10, (1, 8, 8)),
    "fashion-mnist": (10, (1, 28, 28)),
    "synthetic": (10, (3, 32, 32)),
    "cifar10": (10, (3, 32, 32)),
    "cifar100": (100, (3, 32, 32)),
}
PARAMETERS = {
    "cifar10": 272_474,
    "cifar100": 278_324,
    "digits": 274,
    "digits-wait": 1_702,
    "fashion-mnist": 19_810,
    "many-envs": 274,
    "mixture": 274,
    "synthetic-32": 6_418,
    "text": 11_712,
    "tinystories": 29_915_136,
}
"""Of a host without seeds; docs/reference/training.md has the formulas."""
TINYSTORIES_VOCABULARY = 25_000


def task(name: str) -> Task:
    """Random examples in the shape of the task of a preset."""
    if name == "tinystories":
        alphabet = "".join(chr(0x4E00 + i) for i in range(TINYSTORIES_VOCABULARY - 1))
        return Text.of(name, alphabet + 12_000 * alphabet[0], 256)
    if name == "mixture":
        return load_task(TaskConfig(mixture=load(preset=name).task.mixture, instances=1), torch.device("cpu"))
    return tiny(*IMAGES[name], train=200) if name in IMAGES else dataset(name)


@pytest.mark.parametrize(
    "name",
    [*sorted(PARAMETERS.keys() - {"tinystories"}), pytest.param("tinystories", marks=pytest.mark.slow)],
)
def test_parameters_of_a_host(name: str) -> None:
    config = load_sourced(preset=name)
    data = task(config.config.task.label)
    model, _ = build_model(resolve_task_defaults(config, data.name, data.kind).config, data)
    assert sum(spec.count for spec in model.specs().values()) == PARAMETERS[name]
    assert PARAMETERS.keys() == presets().keys()


@pytest.mark.parametrize("name", sorted(presets()))
def test_it_loads_is_described_and_trains(name: str) -> None:
    line = presets()[name]
    assert 20 < len(line) <= 110
    assert line.endswith(".")
    config = load(preset=name)
    assert config != Config()
    sets = ["envs.count=2", "envs.copies=1", "ppo.minibatches=2", "task.batches_per_epoch=1"]
    sets += ["task.batch_size=8"]
    data = task(config.task.label)
    if name == "tinystories":
        data = Text.of("stories", "The cat and the dog saw a ball. " * 300, 256)
        sets += ["host.width=24", "host.mlp=48"]
    small = load_sourced(preset=name, sets=sets)
    population = Population(resolve_task_defaults(small, data.name, data.kind).config, data, "cpu")
    population.begin_episode(1)
    table = population.table
    population.set_topology(table.stage, table.blueprint, table.style)
    assert population.run_epoch(1, 0).measurements.val_loss.isfinite().all()
    population.close()


def test_files_environment_and_words_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[envs]\ncount = 32\n")
    assert load(preset="many-envs").envs.count == 64
    config = load(preset="many-envs", file=file, environ={"ESPER_HOST_KERNEL": "3"}, sets=["seed=7"])
    assert (config.envs.count, config.ppo.minibatches, config.host.kernel, config.seed) == (32, 8, 3, 7)
    saved = msgspec.to_builtins(load(sets=["envs.count=5", "rounds=9"]))
    assert load(saved=saved, preset="many-envs").envs.count == 64


@pytest.mark.parametrize("command", [["start"], ["start", "--detach"], ["options"]])
def test_an_unknown_name_is_one_line_with_a_near_one(command: list[str]) -> None:
    result = esper(*command, "--preset", "digits-wiat")
    assert result.exit_code == UnknownPreset.exit_code
    assert result.output.count("\n") == 1
    assert "digits-wiat" in result.output
    assert "did you mean digits-wait?" in result.output


def test_they_are_listed() -> None:
    result = esper("presets")
    assert [line.split()[0] for line in result.output.splitlines()] == sorted(presets())
    assert json.loads(esper("presets", "--json").output) == presets()


def test_options_that_matter_first_are_shown_first() -> None:
    first = [key for keys in FIRST_OPTIONS.values() for key in keys]
    assert len(first) == len(set(first)) <= 30
    shown = esper("options", "--set", "ppo.clip=0.1").output.splitlines()
    keys = [line.split(" = ")[0] for line in shown if " = " in line and not line.startswith(" ")]
    assert keys == [*first, "ppo.clip"]
    assert shown[-1] == f"{len(OPTIONS) - len(keys)} more: esper-daemon options --all"
    every = esper("options", "--all").output.splitlines()
    assert [line.split(" = ")[0] for line in every[::2]] == list(OPTIONS)


def test_options_show_what_a_preset_sets() -> None:
    result = esper("options", "--preset", "digits-wait")
    assert "host.channels = (4, 8, 16)  (preset digits-wait; default (8, 8, 8))" in result.output
    changed = [line for line in result.output.splitlines() if "preset digits-wait; default " in line]
    assert [line.split()[0] for line in changed] == ["host.channels", "host.kernel"]


def difference(*words: str) -> list[dict[str, Any]]:
    """What `presets --diff` says of each option: the fields of its JSON."""
    result = esper("presets", "--diff", *words, "--json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.output)
    return rows


def test_a_difference_is_what_a_preset_and_its_task_set() -> None:
    text = {row["option"]: (row["value"], row["was"], row["source"]) for row in difference("text")}
    assert text["task.dataset"] == ("text", "digits", "preset text")
    assert text["host.learning_rate"] == (0.5, 0.05, "task")
    assert {row["preset"] for row in difference()} == set(presets())
    one, other = difference("text", "many-envs"), difference("many-envs", "text")
    assert {(r["option"], repr(r["value"]), repr(r["was"])) for r in one} == {
        (r["option"], repr(r["was"]), repr(r["value"])) for r in other
    }
    assert {"task.dataset", "envs.count"} <= {row["option"] for row in one}


def test_a_printed_difference_is_aligned_and_never_silent() -> None:
    lines = esper("presets", "--diff", "digits-wait").output.splitlines()
    assert lines[0].split() == ["preset", "option", "value", "default", "from"]
    assert lines[1].split() == ["digits-wait", "host.channels", "4,8,16", "8,8,8", "preset", "digits-wait"]
    assert [line.index(word) for line, word in zip(lines[:2], ("option", "host."), strict=True)] == [13, 13]
    same = esper("presets", "--diff", "text", "text").output
    assert same.splitlines()[-1] == "text changes nothing of text"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["text"], "--diff"),
        (["--diff", "a", "b", "c"], "--diff"),
        (["--diff", "digts"], "did you mean digits"),
    ],
)
def test_wrong_words_for_a_difference_are_told(words: list[str], said: str) -> None:
    result = esper("presets", *words)
    assert result.exit_code in (2, UnknownPreset.exit_code)
    assert said in result.output
