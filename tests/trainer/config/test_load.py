"""Five sources, one precedence, and errors that name the key, the value and what is allowed."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.config.load import OPTIONS, ConfigError, load, load_sourced, to_toml
from esper_overwatch.trainer.config.schema import Config
from tests.cases import mostly_nightly
from tests.trainer.command import esper


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seed = 2\nrounds = 5\n[ppo]\nclip = 0.3\n")
    environ = {"ESPER_SEED": "3", "ESPER_PPO_CLIP": "0.25", "ESPER_HOME": "/x", "PATH": "/bin"}
    config = load(file=file, environ=environ, sets=["ppo.clip=0.1", "host.channels=4,8"])
    assert (config.rounds, config.seed, config.ppo.clip, config.host.channels) == (5, 3, 0.1, (4, 8))


def test_saved_configuration_is_the_base_of_a_resumed_run() -> None:
    saved = msgspec.to_builtins(load(sets=["envs.count=5", "rounds=9"]))
    config = load(saved=saved, sets=["rounds=12"])
    assert (config.envs.count, config.rounds) == (5, 12)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["envs.cuont=4"], ["--set", "envs.cuont", "envs.count"]),
        (["envs.count=-3"], ["envs.count", "-3", "an integer from 1"]),
        (["envs.count=many"], ["envs.count", "many", "an integer"]),
        (["ppo.clip=7"], ["ppo.clip", "7", "a number from 0.01 to 1"]),
        (["device=tpu"], ["device", "tpu", "cuda"]),
        (["seeds.gates=lax"], ["seeds.gates", "lax", "permissive, strict"]),
        (["host.channels=8,-1"], ["host.channels", "-1", "a list of 1 to 10 values"]),
        (["count=4"], ["unknown key count", "envs.count"]),
        (["learning_rate=1"], ["did you mean host.learning_rate or seeds.learning_rate or ppo."]),
        (["envs.count"], ["key=value"]),
        (
            ["seeds.blueprints=norm,lora,norm"],
            ["seeds.blueprints", "norm, lora, norm", "named twice"],
        ),
        (["task.augment=crop,crop"], ["task.augment", "crop is named twice"]),
        (["profiler.rounds=1,2,1"], ["profiler.rounds", "1 is named twice"]),
        (["ppo.minibatches=9"], ["ppo.minibatches", "9", "envs.count", "8"]),
    ],
)
def test_bad_values_are_one_line(sets: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(sets=sets)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_one_env_is_enough_for_a_rule() -> None:
    assert load(sets=["envs.count=1", "policy.kind=fixed"]).envs.count == 1
    with pytest.raises(ConfigError, match=r"ppo\.minibatches"):
        load(sets=["envs.count=1"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("envs = 3", ["unknown key envs"]),
        ("[envs]\ncount = '8'", []),
        ("[envs]\ncount = 2.5", ["envs.count", "2.5"]),
        ("[envs\n", ["is not TOML"]),
        ("[ppo]\nlearning_rte = 1.0", ["learning_rte", "ppo.learning_rate"]),
    ],
)
def test_bad_files_name_the_file(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    if not words:
        assert load(file=file).envs.count == 8
        return
    with pytest.raises(ConfigError) as caught:
        load(file=file)
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_missing_file_and_unknown_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="ESPER_ENV_COUNT; did you mean ESPER_ENVS_COUNT"):
        load(environ={"ESPER_ENV_COUNT": "3"})


def test_every_option_has_description_bounds_and_unique_variable() -> None:
    assert all(option.description and option.allowed for option in OPTIONS.values())
    assert len({option.variable for option in OPTIONS.values()}) == len(OPTIONS)


@given(st.integers(1, 4096), st.floats(0.01, 1.0), st.lists(st.integers(1, 64), min_size=1, max_size=10))
def test_toml_round_trip(count: int, clip: float, channels: list[int]) -> None:
    sets = [f"envs.count={count}", f"ppo.clip={clip!r}", f"host.channels={channels}", "ppo.minibatches=1"]
    config = load(sets=sets)
    assert msgspec.convert(tomllib.loads(to_toml(config)), Config) == config


def test_every_option_is_read_somewhere() -> None:
    """An option nobody reads is a defect: each leaf name appears as an attribute outside `config`.

    Those of `anomalies` are read together; tests/trainer/telemetry/test_anomalies.py moves each of them.
    """
    root = Path(__file__).parents[3] / "trainer"
    code = "\n".join(p.read_text() for p in root.rglob("*.py") if p.name not in {"config.py", "settings.py"})
    named = [key for key in OPTIONS if not key.startswith("anomalies.")]
    unread = [key for key in named if not re.search(rf"\.{key.rpartition('.')[2]}\b", code)]
    assert not unread


NONSENSE = (
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "99999999999999999999",
    "abc",
    "None",
    "true",
    "[]",
    "null",
    "",
    "-",
    "0x",
)


@pytest.mark.parametrize("key", OPTIONS)
def test_nonsense_is_one_line_or_a_finite_value(key: str) -> None:
    for value in NONSENSE:
        told, found = "", None
        try:
            found = load_sourced(sets=[f"{key}={value}"]).value(key)
        except ConfigError as error:
            told = str(error)
        assert "\n" not in told
        assert not told or key in told or "must" in told
        assert not isinstance(found, float) or math.isfinite(found), (key, value)


FREE_TEXT: dict[str, tuple[str, ...]] = {
    "task.dataset": (),
    "task.mixture": (),
    "task.data_dir": ("task.dataset=fashion-mnist",),
    "seeds.blueprints": (),
    "policy.file": (),
    "policy.constant": ("policy.kind=constant",),
    "evaluation.constant": ("evaluation.rounds=1",),
    "alerts.file": (),
}
"""Options that take any words, which only the task or the host can judge, and what they need for it."""


def test_no_other_option_takes_any_words() -> None:
    assert {key for key in OPTIONS if _accepts(f"{key}=abc", *FREE_TEXT.get(key, ()))} == set(FREE_TEXT)


@pytest.mark.slow
@pytest.mark.parametrize("key", mostly_nightly(FREE_TEXT, "task.dataset", "policy.file"))
def test_nonsense_words_end_a_start_with_one_line(key: str, home: Path) -> None:
    for value in (value for value in NONSENSE if value not in ("", "[]")):
        sets = [word for item in (*FREE_TEXT[key], f"{key}={value}") for word in ("--set", item)]
        refused = esper("start", "--device", "cpu", *sets)
        assert refused.exit_code == 9, (value, refused.output)
        assert len(refused.stderr.splitlines()) == 1, refused.stderr
        assert value in refused.stderr
    assert not list(home.glob("runs/*"))


def _accepts(*sets: str) -> bool:
    try:
        load_sourced(sets=sets)
    except ConfigError:
        return False
    return True


def test_a_dataset_named_beside_a_mixture_is_refused() -> None:
    for preset, sets in (("mixture", ["task.dataset=digits"]), (None, ["task.dataset=digits"])):
        with pytest.raises(ConfigError, match=r"task\.dataset = digits: hosts learn task\.mixture = digits,"):
            load(preset=preset, sets=[*sets, "task.mixture=digits,layout"])
    with pytest.raises(ConfigError, match=r"leave it out, or set task\.mixture to nothing"):
        load(environ={"ESPER_TASK_DATASET": "digits"}, preset="mixture")
    assert load(preset="digits", sets=["task.mixture=digits,layout"]).task.mixture == ("digits", "layout")
    assert load(preset="mixture", sets=["task.dataset=digits", "task.mixture="]).task.mixture == ()
    saved = msgspec.to_builtins(load(preset="mixture"))
    assert load(saved=saved).task.mixture, "a run that is resumed has all options"
