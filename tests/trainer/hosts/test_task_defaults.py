"""Which host a task gets, which defaults go with it, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from trainer.cli.main import main
from trainer.config.load import load as settings
from trainer.config.load import to_toml
from trainer.data.registry import load
from trainer.hosts.task_defaults import build_model, resolve_task_defaults
from trainer.hosts.transformer import Transformer

torch.set_num_threads(1)


def test_text_gets_transformer_defaults_and_images_none() -> None:
    images = resolve_task_defaults(settings(), load("digits"))
    assert images == settings(sets=["host.family=cnn"])
    text = resolve_task_defaults(settings(), load("text"))
    assert (text.host.family, text.host.learning_rate) == ("transformer", 0.5)
    assert text.seeds.blueprints == ("norm", "lora", "attention", "mlp")
    assert resolve_task_defaults(text, load("text")) == text, "a resumed run has it decided already"
    assert "transformer" in to_toml(text)
    assert resolve_task_defaults(settings(sets=["host.heads=2"]), load("text")).host.learning_rate == 0.2
    chosen = resolve_task_defaults(
        settings(sets=["host.learning_rate=0.1", "seeds.blueprints=mlp"]), load("text")
    )
    assert (chosen.host.learning_rate, chosen.seeds.blueprints) == (0.1, ("mlp",))


@pytest.mark.parametrize("depth", [1, 10])
def test_depth_width_heads_and_mlp_shape_the_host(depth: int) -> None:
    task = load("text", context=8)
    sets = [f"host.depth={depth}", "host.width=12", "host.heads=3", "host.mlp=20"]
    model, pool = build_model(resolve_task_defaults(settings(sets=sets), task), task)
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
        (["task.dataset=text", "task.augment=flip"], "task.augment: is for images"),
        (["task.dataset=text", "host.heads=3"], "host.width = 32: must be a multiple of host.heads = 3"),
        (["task.dataset=text", "host.mlp=0"], "host.heads = 0 and host.mlp = 0: a block needs one of them"),
        (
            ["task.dataset=text", "seeds.blueprints=conv_light"],
            "no blueprint named 'conv_light' for a transf",
        ),
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
