"""An option that has no effect beside the others is refused, where somebody has given it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from esper_overwatch.trainer.cli.compare import _load_configuration
from esper_overwatch.trainer.config.idle_options import FOR_RULES_AS_WELL, NEEDS, Need, unmet_needs
from esper_overwatch.trainer.config.load import (
    OPTIONS,
    ConfigError,
    convert,
    drop_idle,
    load,
    load_sourced,
    to_toml,
)
from esper_overwatch.trainer.config.presets import presets
from esper_overwatch.trainer.control.live_parameters import PARAMETERS

from .option_effects import Flip
from .option_flips import FLIPS

SWITCHED = {
    "policy.kind = ppo": ("fixed", "ppo"),
    "policy.learn = true": ("false", "true"),
    "policy.kind = constant": ("ppo", "constant"),
    "ppo.entropy_rounds from 1 on": ("0", "9"),
    "tasks in task.mixture": ("", "digits,layout"),
    "evaluation.rounds from 1 on": ("0", "5"),
    "seeds.gates = strict": ("permissive", "strict"),
    "governor.veto = true": ("false", "true"),
    "telemetry.stride = 0": ("2", "0"),
    "telemetry.debug_every from 1 on": ("0", "4"),
    "telemetry.escalate_on = warning or critical": ("off", "warning"),
    "rounds in profiler.rounds": ("", "1,3"),
    "reward.mode = shaped, sparse, minimal, escrow, basic, basic_plus, simplified or loss": (
        "contribution",
        "sparse",
    ),
    "reward.mode = contribution, basic, basic_plus, simplified or loss": ("shaped", "loss"),
    "reward.mode = shaped, sparse, minimal, contribution, escrow, basic, basic_plus or loss": (
        "simplified",
        "escrow",
    ),
    "reward.mode = shaped or contribution": ("loss", "contribution"),
    "reward.mode = shaped, contribution or loss": ("minimal", "loss"),
    "reward.mode = contribution": ("shaped", "contribution"),
    "reward.mode = minimal": ("shaped", "minimal"),
    "reward.mode = basic, basic_plus or simplified": ("shaped", "simplified"),
    "reward.mode = basic_plus": ("shaped", "basic_plus"),
}
"""Values of the switch of each need without and with an effect of the others."""
NOT_FLIPPED = {
    "policy.constant": "norm,none,none",
    "gates.min_contribution": "0.5",
    "governor.veto_epochs": "7",
}
EACH = [pytest.param(need, key, id=f"{key} by {need.switch}") for need in NEEDS for key in need.options]


def other_value(key: str) -> str:
    """One that is not the default."""
    flip = FLIPS[key]
    return flip.value if isinstance(flip, Flip) else NOT_FLIPPED[key]


@pytest.mark.parametrize(("need", "key"), EACH)
def test_given_without_what_it_needs_it_is_refused(need: Need, key: str) -> None:
    off = SWITCHED[need.words][0]
    with pytest.raises(ConfigError) as caught:
        load(sets=["rounds=9", f"{key}={other_value(key)}", f"{need.switch}={off}"])
    assert str(caught.value) == (
        f"{key} (--set): is for {need.words}, and {need.switch} is {off or 'empty'}; "
        f"leave it out, or set {need.switch} too"
    )


@pytest.mark.parametrize(("need", "key"), EACH)
def test_given_with_all_it_needs_it_is_taken(need: Need, key: str) -> None:
    needs = [f"{one.switch}={SWITCHED[one.words][1]}" for one in NEEDS if key in one.options]
    value = other_value(key)
    found = load_sourced(sets=["rounds=9", *needs, f"{key}={value}"]).value(key)
    assert found == convert(key, value, "test") != OPTIONS[key].default


def test_files_and_the_environment_are_refused_as_well(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[evaluation]\nhosts = 3\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^evaluation\.hosts \(file .*run\.toml\): is for evaluation\.rounds"
    ):
        load(file=file)
    assert load(file=file, sets=["evaluation.rounds=2"]).evaluation.hosts == 3
    with pytest.raises(ConfigError, match=r"^evaluation\.hosts \(environment ESPER_EVALUATION_HOSTS\): is"):
        load(environ={"ESPER_EVALUATION_HOSTS": "3"})


@pytest.mark.parametrize("off", ["evaluation.rounds=0", "policy.kind=fixed", "task.mixture="])
def test_what_a_preset_brings_gives_way(off: str) -> None:
    assert load(preset="mixture", sets=[off]).evaluation.constant


def test_what_a_later_source_switches_off_gives_way(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[evaluation]\nrounds = 2\nhosts = 3\n[ppo]\nclip = 0.1\n", encoding="utf-8")
    assert load(file=file, sets=["evaluation.rounds=0", "policy.kind=random"]).evaluation.hosts == 3
    environ = {"ESPER_EVALUATION_ROUNDS": "0"}
    with pytest.raises(ConfigError, match=r"^evaluation\.hosts \(--set\)"):
        load(file=file, environ=environ, sets=["evaluation.hosts=4"])


def test_trained_policy_plays_with_its_own_configuration(tmp_path: Path) -> None:
    sets = ["rounds=9", "ppo.clip=0.1"]
    file = tmp_path / "run.toml"
    file.write_text(to_toml(load(sets=sets)), encoding="utf-8")
    played = load(file=file, sets=["policy.learn=false"])
    assert played.ppo.clip == 0.1
    file.write_text(to_toml(played), encoding="utf-8")
    again = load(file=file)
    assert (again.policy.learn, again.ppo.clip) == (False, 0.2)
    assert _load_configuration(None, file, ("ppo.clip=0.1",), 64, has_tasks=False).config.policy.learn


def test_values_that_change_nothing_are_taken() -> None:
    assert load(sets=["evaluation.hosts=40", "ppo.entropy_final=0.005"]).evaluation.hosts == 40
    sets = ["evaluation.rounds=0", "evaluation.constant=depthwise,none,norm"]
    assert load(preset="mixture", sets=sets).evaluation.rounds == 0


def test_a_run_that_has_idle_options_can_be_resumed() -> None:
    saved = json.loads(msgspec.json.encode(load(preset="mixture", sets=["evaluation.rounds=0"])))
    saved["evaluation"]["hosts"] = 3
    again = ["evaluation.hosts=3", "evaluation.constant=depthwise,none,norm", "rounds=9"]
    assert load(saved=saved).evaluation.hosts == 3
    assert load(saved=saved, sets=again).rounds == 9, "as --or-resume repeats what the run was begun with"
    with pytest.raises(ConfigError, match=r"^evaluation\.hosts"):
        load(saved=saved, sets=["evaluation.hosts=4"])


def test_a_printed_configuration_can_be_read_back(tmp_path: Path) -> None:
    sourced = load_sourced(preset="mixture", sets=["evaluation.rounds=0"])
    file = tmp_path / "run.toml"
    for sources in (None, sourced.sources):
        text = to_toml(sourced.config, sources)
        assert '# constant = ["depthwise", "none", "norm"]  # no effect' in text
        file.write_text(text, encoding="utf-8")
        found = load(file=file)
        assert (found.evaluation.rounds, found.ppo) == (0, sourced.config.ppo)


def test_no_preset_has_idle_options() -> None:
    for name in presets():
        sourced = load_sourced(preset=name)
        assert not [key for key, _ in unmet_needs(sourced.config) if sourced.sources[key] != "default"], name


def test_no_live_parameter_gives_an_idle_option_its_effect() -> None:
    assert not {need.switch for need in NEEDS} & PARAMETERS.keys()


def test_what_rules_use_of_ppo_is_left_to_them() -> None:
    assert {f"ppo.{name}" for name in FOR_RULES_AS_WELL} <= OPTIONS.keys()
    assert load(sets=["policy.kind=fixed", "ppo.gamma=0.5", "ppo.minibatches=1"]).ppo.gamma == 0.5


def test_trials_of_a_sweep_leave_out_idle_options() -> None:
    base = msgspec.to_builtins(load(sets=["evaluation.rounds=2"]))
    sets = ["evaluation.hosts=3", "ppo.entropy_final=0.01", "ppo.entropy_rounds=0"]
    assert drop_idle(base, sets) == ["evaluation.hosts=3", "ppo.entropy_rounds=0"]
    assert drop_idle(base, [*sets[:2], "ppo.entropy_rounds=9"])[1] == "ppo.entropy_final=0.01"


def test_what_a_sweep_varies_refuses_nothing() -> None:
    sets = ["ppo.entropy_final=0.01"]
    assert load_sourced(sets=sets, varied=["ppo.entropy_rounds"]).config.ppo.entropy_final == 0.01
    with pytest.raises(ConfigError, match=r"^ppo\.entropy_final"):
        load_sourced(sets=sets, varied=["ppo.clip"])


def test_comparisons_of_named_tasks_have_instances() -> None:
    sets = ("task.instances=2",)
    assert _load_configuration(None, None, sets, 8, has_tasks=True).config.task.instances == 2
    with pytest.raises(ConfigError, match=r"^task\.instances"):
        _load_configuration(None, None, sets, 8, has_tasks=False)


def test_comparisons_train_ppo_whatever_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('policy.kind = "random"\nppo.clip = 0.1\n', encoding="utf-8")
    assert _load_configuration(None, file, (), 8, has_tasks=False).config.ppo.clip == 0.1
