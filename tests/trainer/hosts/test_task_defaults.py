"""Which host a task gets, which defaults go with it, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from esper_overwatch.trainer.cli.main import main
from esper_overwatch.trainer.compute.stacked_ops import initialise
from esper_overwatch.trainer.config.load import ConfigError, SourcedConfig, load_sourced
from esper_overwatch.trainer.config.load import load as settings
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.data.text import Text
from esper_overwatch.trainer.hosts.task_defaults import build_model, check_sizes, resolve_task_defaults
from esper_overwatch.trainer.hosts.transformer import Transformer
from tests.trainer.hosts.plots import tiny

torch.set_num_threads(1)


def resolved(task: Task, *sets: str, **sources: Any) -> SourcedConfig:
    return resolve_task_defaults(load_sourced(sets=sets, **sources), task.name, task.kind)


def test_text_gets_transformer_defaults_and_images_none() -> None:
    images = resolved(load("digits"))
    assert images.config == settings(sets=["host.family=cnn"])
    assert {key for key, source in images.sources.items() if source != "default"} == {"host.family"}
    text = resolved(load("text"))
    assert (text.config.host.family, text.config.host.learning_rate) == ("transformer", 0.5)
    assert text.config.seeds.blueprints == ("norm", "lora", "attention", "mlp")
    brought = {key for key, source in text.sources.items() if source == "task"}
    assert brought == {"host.family", "host.learning_rate", "seeds.blueprints"}
    assert resolved(load("text"), "host.heads=2").config.host.learning_rate == 0.2


def test_a_given_value_stays_where_it_is_the_default(tmp_path: Path) -> None:
    own = "norm,attention,depthwise,conv_light"
    file = tmp_path / "run.toml"
    file.write_text("[host]\nlearning_rate = 0.05\n")
    text = load("text")
    by_set = resolved(text, "host.learning_rate=0.05", f"seeds.blueprints={own}")
    assert by_set.config.host.learning_rate == 0.05
    assert by_set.config.seeds.blueprints == tuple(own.split(","))
    assert by_set.sources["host.learning_rate"] == "--set"
    by_file = resolved(text, file=file)
    assert by_file.config.host.learning_rate == 0.05
    assert by_file.sources["host.learning_rate"] == f"file {file}"
    by_variable = resolved(text, environ={"ESPER_HOST_LEARNING_RATE": "0.05"})
    assert by_variable.config.host.learning_rate == 0.05
    assert by_variable.sources["host.learning_rate"] == "environment ESPER_HOST_LEARNING_RATE"


def test_checkpoints_of_texts_keep_the_kinds_they_had() -> None:
    """New built-in kinds do not join a run by themselves, so that older checkpoints fit."""
    pool = build_model(resolved(load("text")).config, load("text"))[1]
    assert {name: spec.count for name, spec in pool.specs().items() if name.startswith("r0c0.")} == {
        "r0c0.norm": 65,
        "r0c0.lora": 256,
        "r0c0.attention": 4096,
        "r0c0.mlp": 8192,
        "r0c0.gate": 33,
    }


def test_hosts_that_take_minutes_to_build_are_told_before() -> None:
    digits = load("digits")
    assert check_sizes(resolved(digits).config, digits) is None
    told = check_sizes(resolved(digits, "host.channels=1024,1024,1024").config, digits)
    assert told is not None
    assert "million parameters" in told
    assert "8 hosts need about" in told


def test_epochs_that_take_minutes_on_a_cpu_are_told_before() -> None:
    data = tiny(10, (3, 32, 32))
    small = resolved(data, "host.channels=8,16,32", "host.kernel=3", "task.batch_size=16").config
    assert check_sizes(small, data) is None
    residual = ("host.family=resnet", "host.channels=16,32,64", "task.batch_size=32", "envs.count=16")
    told = check_sizes(resolved(data, *residual).config, data)
    assert told is not None
    assert "a training step of a host takes 8 billion operations, an epoch of 16 hosts 2 trillion" in told
    assert "million parameters" not in told
    with pytest.raises(ConfigError, match=r"task\.batch_size = 51: tiny has 50 to train on"):
        check_sizes(resolved(data, "host.family=resnet", "task.batch_size=51").config, data)
    text = Text.of("short", "the cat sat. " * 30, 32)
    assert check_sizes(resolved(text, "task.batch_size=8").config, text) is None
    with pytest.raises(ConfigError, match=r"task\.batch_size = 9: short has 8 to train on"):
        check_sizes(resolved(text, "task.batch_size=9").config, text)


@pytest.mark.parametrize("family", ["cnn", "resnet"])
def test_products_are_those_that_torch_counts(family: str) -> None:
    data = tiny(10, (3, 16, 16))
    model, _ = build_model(resolved(data, f"host.family={family}", "host.channels=4,8").config, data)
    weights = initialise(model.specs(), torch.zeros(1, dtype=torch.int64), torch.float32)
    with FlopCounterMode(display=False) as counter:
        x = torch.zeros(1, 3, 16, 16)
        for i in range(2):
            x = model.train_block(i, x, weights)
        model.head(x, weights)
    assert counter.get_total_flops() == 2 * model.products


def test_a_resumed_run_has_it_decided_already() -> None:
    text = resolved(load("text"))
    saved: dict[str, Any] = msgspec.to_builtins(text.config)
    again = resolved(load("text"), "rounds=3", saved=saved, saved_sources=text.sources)
    assert again.config == msgspec.structs.replace(text.config, rounds=3)
    assert again.sources == {**text.sources, "rounds": "--set"}
    older = resolved(load("text"), saved=saved)
    assert older.config == text.config
    assert set(older.sources.values()) == {"saved"}


def test_options_say_where_each_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_PPO_CLIP", "0.2")
    file = tmp_path / "run.toml"
    file.write_text("rounds = 5\n")
    words = ["options", "--all", "--preset", "text", "--config", str(file), "--set", "envs.count=8"]
    told = CliRunner().invoke(main, words).output
    for line in (
        "task.dataset = text  (preset text; default digits)",
        f"rounds = 5  (file {file}; default 0)",
        "ppo.clip = 0.2  (environment ESPER_PPO_CLIP)",
        "envs.count = 8  (--set)",
        "host.learning_rate = 0.5  (task; default 0.05)",
        "host.momentum = 0.9  (default)",
    ):
        assert line in told.splitlines(), line
    toml = tmp_path / "all.toml"
    toml.write_text(CliRunner().invoke(main, [*words, "--toml"]).output)
    monkeypatch.delenv("ESPER_PPO_CLIP")
    one, two = load_sourced(file=toml), load_sourced(preset="text", file=file)
    assert one.config == two.config
    assert one.is_open("host.learning_rate"), "what nobody chose is a comment"
    assert not one.is_open("envs.count")


@pytest.mark.parametrize("depth", [1, 10])
def test_depth_width_heads_and_mlp_shape_the_host(depth: int) -> None:
    task = load("text", context=8)
    sets = [f"host.depth={depth}", "host.width=12", "host.heads=3", "host.mlp=20"]
    model, pool = build_model(resolved(task, *sets).config, task)
    assert isinstance(model, Transformer)
    assert pool.slots == [f"r0c{i}" for i in range(depth)]
    block = 4 * 12 * 12 + 2 * 12 * 20
    embeddings = 12 * task.classes + 12 * 8
    counted = sum(spec.count for spec in model.specs().values())
    assert counted == embeddings + depth * block + 12 * task.classes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["host.family=transformer"], "host.family = transformer: digits is images"),
        (["task.dataset=text", "host.family=cnn"], "host.family = cnn: text is text"),
        (["task.dataset=text", "task.augment=flip"], "task.augment (--set): is for images"),
        (
            ["task.dataset=text", "host.channels=4,8"],
            "host.channels (--set): is for images, and text is",
        ),
        (["task.dataset=text", "host.kernel=3"], "host.kernel (--set): is for images"),
        (["host.width=64"], "host.width (--set): is for text, and digits is images; leave it out"),
        (["seeds.max_live=4"], "seeds.max_live = 4: the host has 3 slots; 0 is no limit"),
        (["seeds.max_live=-1"], "seeds.max_live = '-1': must be an integer from 0 to 64"),
        (["seeds.one_at_a_time=2"], "seeds.one_at_a_time = '2': must be true or false"),
        (["task.batch_size=65536"], "task.batch_size = 65536: digits has"),
        (["cuda.allocator=nonsense:1"], "cuda.allocator = nonsense:1: torch has no setting nonsense"),
        (["cuda.allocator=max_split_size_mb:x"], "torch refuses 'x' for max_split_size_mb"),
        (["cuda.allocator=expandable_segments:maybe"], "torch refuses 'maybe' for expandable_segments"),
        (["host.depth=2"], "host.depth (--set): is for text"),
        (["host.heads=2"], "host.heads (--set): is for text"),
        (["host.mlp=64"], "host.mlp (--set): is for text"),
        (["task.context=64"], "task.context (--set): is for text"),
        (["task.dataset=text", "host.heads=3"], "host.width = 32: must be a multiple of host.heads = 3"),
        (["task.dataset=text", "host.mlp=0"], "host.heads = 0 and host.mlp = 0: a block needs one of them"),
        (
            ["task.dataset=text", "seeds.blueprints=conv_light"],
            "no blueprint named 'conv_light' for a transf",
        ),
        (["task.dataset=text", "seeds.blueprints=lora:rank=0"], "lora:rank=0: write lora:rank=N, N an integ"),
        (["task.dataset=text", "seeds.blueprints=attention:head_width=5"], "must divide the width of"),
        (["seeds.blueprints=conv_light:width=8"], "conv_light comes in one size; leave :width=8 out"),
        (["seeds.blueprints=lora"], "no blueprint named 'lora' for a cnn host; there are norm, attention"),
        (["task.dataset=text", "task.data_dir=/nowhere.txt"], "/nowhere.txt: no such file"),
    ],
)
def test_settings_that_contradict_the_task_are_one_line_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    sets = [word for option in options for word in ("--set", option)]
    refused = CliRunner().invoke(main, ["start", "--device", "cpu", *sets])
    assert refused.exit_code == 9
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "home" / "runs").exists()
