"""A whole comparison of small policies: same hosts for all, resumable, what the controls must show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from click.testing import Result

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.cli.compare import UNUSED
from esper_overwatch.trainer.compare.cells import CellStore
from esper_overwatch.trainer.compare.comparison import ComparisonRequest, compare
from esper_overwatch.trainer.compare.frozen_policies import (
    ScheduledPolicy,
    ShuffledPolicy,
    StaticPolicy,
    draw_partners,
)
from esper_overwatch.trainer.compare.policy_words import UnknownPolicy, Word, default_policies, parse_policies
from esper_overwatch.trainer.compare.progress import Progress
from esper_overwatch.trainer.compare.steps import OF_TRAINING, Steps
from esper_overwatch.trainer.compare.workbench import SearchEpisodes, TrainingHosts, Workbench
from esper_overwatch.trainer.config.load import OPTIONS, ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.episode_table import EpisodeTable
from esper_overwatch.trainer.episodes import Episodes
from esper_overwatch.trainer.evaluation.episodes import HeldOutEpisodes
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.observation import SLOT_COLUMNS, Observation
from esper_overwatch.trainer.policy.saved_policy import PolicyMismatch, SavedPolicy
from tests.trainer.command import esper
from tests.trainer.evaluation.test_episodes import CPU, MIXED, configuration

torch.set_num_threads(1)
EMPTY, DEPTHWISE = 0, 1
SCHEDULES = torch.tensor([[-1, -1, -1], [2, -1, -1]])


def play(cfg: Config, policy: FrozenPolicy, count: int = 6) -> EpisodeTable:
    held_out = HeldOutHosts(count=count)
    episodes = HeldOutEpisodes(cfg, held_out.load(cfg.task, CPU), held_out, CPU)
    try:
        return episodes.play(policy)
    finally:
        episodes.close()


def run(
    folder: Path, words: str, cfg: Config | None = None, episodes: int = 4, seeds: int = 2
) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    request = ComparisonRequest(parse_policies([words]), seeds, episodes, HeldOutHosts(count=6))
    progress = Progress(said.append, every=0.0)
    cfg = cfg or configuration(*MIXED)
    data = load_task(cfg.task, CPU)
    return compare(cfg, data, request, CellStore(folder), CPU, progress), said


@pytest.mark.slow
def test_schedule_does_what_the_constant_policy_does() -> None:
    cfg = configuration(*MIXED, "episode_epochs=12")
    mine = play(cfg, ScheduledPolicy.of(SCHEDULES[[DEPTHWISE] * 6]))
    theirs = play(cfg, FrozenPolicy.constant("depthwise", "none", "none"))
    assert mine.to_builtins() == theirs.to_builtins()
    assert (mine.blueprint == [2, -1, -1]).all()


@pytest.mark.slow
def test_search_meets_the_hosts_that_it_names() -> None:
    cfg = configuration(*MIXED, "envs.count=4")
    hosts = TrainingHosts(1, 4)
    episodes = SearchEpisodes(cfg, hosts.load(cfg.task, CPU), hosts, CPU)

    def paid(hosts: range, *chosen: int) -> list[float]:
        choices = torch.tensor(chosen)
        found = episodes.play_schedules(hosts, lambda _: choices, SCHEDULES)
        assert found["chosen"] is choices
        assert len(found["context"]) == len(hosts)
        return [float(value) for value in found["paid"]]

    together = paid(range(4), EMPTY, DEPTHWISE, EMPTY, DEPTHWISE)
    assert [*paid(range(1), EMPTY), *paid(range(1, 2), DEPTHWISE)] == pytest.approx(together[:2])
    assert paid(range(2, 4), EMPTY, DEPTHWISE) == pytest.approx(together[2:])
    assert paid(range(1, 2), EMPTY) != together[1:2], "schedules differ on one host"
    episodes.close()


@pytest.mark.slow
def test_schedule_is_chosen_by_what_hosts_have_shown() -> None:
    shown = []

    def choose(seen: Observation) -> torch.Tensor:
        shown.append(seen)
        return SCHEDULES[[EMPTY, DEPTHWISE] * 3]

    table = play(configuration(*MIXED, "episode_epochs=12"), ScheduledPolicy.by(choose, epoch=3))
    (seen,) = shown
    assert seen.base.shape[:2] == (4, 6)
    growth = seen.slot[..., SLOT_COLUMNS.names.index("new_weights_norm_log10")]
    assert growth[:3].isnan().all(), "nobody looks where nothing is decided"
    assert not growth[3].isnan().any()
    assert seen.host_features().isfinite().all()
    assert (table.blueprint == SCHEDULES[[EMPTY, DEPTHWISE] * 3].numpy()).all()
    never = play(configuration(*MIXED, "episode_epochs=4"), ScheduledPolicy.of(SCHEDULES[[1] * 6], epoch=4))
    assert (never.blueprint == -1).all(), "nothing is planted before the epoch"


@pytest.mark.slow
def test_searches_are_done_twice_and_share_hosts_evenly(tmp_path: Path) -> None:
    summary, _ = run(
        tmp_path, "constant,constant@3,oracle", configuration(*MIXED, "episode_epochs=5"), episodes=6
    )
    assert [one["name"] for one in summary["searches"]] == ["constant", "oracle"], "constant@3 is constant's"
    for one in summary["searches"]:
        assert set(one) == {"name", "first", "second", "return"}
    found = {
        path.name.rpartition("-")[0]: json.loads(path.read_text())["result"]
        for path in tmp_path.glob("search-*.json")
    }
    assert sorted(found) == [f"search-{kind}-{seed}" for kind in ("constant", "oracle") for seed in (1, 2)]
    assert {tuple(result["tried"]) for result in found.values()} == {(2, 2, 2)}, "as many hosts of each task"
    notes = {policy["name"]: policy["note"] for policy in summary["policies"]}
    assert notes["constant"] == notes["constant@3"] == summary["searches"][0]["first"]


@pytest.mark.nightly
def test_static_hosts_hold_their_seeds_from_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = []
    before = Episodes.transfer

    def spy(self: Episodes, columns: dict[str, Any], *rest: object) -> None:
        stages.append(self.table.stage.clone())
        before(self, columns, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Episodes, "transfer", spy)
    plan = [[3, -1, 2]] * 6
    table = play(configuration(*MIXED), StaticPolicy.of(plan, [[0, -1, 0]] * 6))
    wanted = torch.tensor([Stage.FOSSILIZED, Stage.DORMANT, Stage.FOSSILIZED])
    assert all((stage == wanted).all() for stage in stages)
    assert table.blueprint.tolist() == plan
    none = play(configuration(*MIXED), FrozenPolicy("no_growth"))
    assert (table.added_parameters > 0).all()
    assert not np.array_equal(table.val_accuracy, none.val_accuracy), "the seeds compute"


@pytest.mark.slow
def test_shuffling_costs_a_constant_nothing() -> None:
    cfg = configuration(*MIXED)
    plain = play(cfg, ScheduledPolicy.of(SCHEDULES[[DEPTHWISE] * 6]))
    other = play(cfg, ShuffledPolicy.of(ScheduledPolicy.of(SCHEDULES[[DEPTHWISE] * 6])))
    assert plain.to_builtins() == other.to_builtins()


def test_default_policies_are_those_that_a_run_has() -> None:
    def names(*sets: str) -> set[str]:
        return {str(word) for word in default_policies(configuration(*sets))}

    assert {"bandit@5", "ppo", "oracle"} < names()
    assert names() - names("episode_epochs=5") == {"constant@5", "bandit@5"}


def test_partner_is_never_oneself() -> None:
    for count in range(2, 30):
        partners = draw_partners(count, seed=count)
        assert sorted(partners.tolist()) == list(range(count))
        assert (partners != torch.arange(count)).all()


@pytest.mark.slow
def test_comparison_resumes_and_repeats(tmp_path: Path, home: Path) -> None:
    words = "no_growth,ppo,ppo+shuffled,static"
    cfg = configuration(*MIXED, "policy.decision_epochs=1,3", "envs.copies=2")
    first, said = run(tmp_path / "a", words, cfg)
    assert "cells, 0 of them known" in said[0]
    again, said = run(tmp_path / "a", words, cfg)
    assert again == first
    assert "0 episodes to go" in said[0], "everything was kept"
    cells = sorted((tmp_path / "a").iterdir())
    for path in cells:
        if path.name.startswith(("train-ppo-2", "play-ppo-2")):
            path.unlink()
    shutil.rmtree(home / "runs" / "a-ppo-2")
    third, _ = run(tmp_path / "a", words, cfg)
    for one in (*first["policies"], *third["policies"]):
        one["training"].pop("seconds", None)
    assert third == first, "what was lost is computed to the same"
    names = [policy["name"] for policy in first["policies"]]
    assert names == words.split(",")
    assert [policy["seeds"] for policy in first["policies"]] == [1, 2, 2, 2]
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["a-ppo-1", "a-ppo-2"]


@pytest.mark.slow
def test_bandit_and_constant_are_searched_beside_ppo(tmp_path: Path) -> None:
    cfg = configuration(*MIXED, "envs.count=4", "seeds.blueprints=norm,depthwise")
    words = "constant,bandit@2,ppo"
    summary, _ = run(tmp_path, words, cfg, episodes=16, seeds=1)
    pairs = [(one["first"], one["second"]) for one in summary["differences"]["trained"]]
    assert [pair for pair in pairs if pair[0] == "ppo"] == [("ppo", name) for name in words.split(",")[:-1]]


@pytest.mark.nightly
def test_interrupted_training_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = run(tmp_path / "whole", "ppo", episodes=8)
    advance = Progress.advance

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", "ppo", episodes=8)
    monkeypatch.setattr(Progress, "advance", advance)
    cut, said = run(tmp_path / "cut", "ppo", episodes=8)
    assert any(line.startswith("train-ppo-1: 8 episodes") for line in said)
    for one in (*whole["policies"], *cut["policies"]):
        one["training"].pop("seconds", None)
    assert cut == whole


@pytest.mark.nightly
def test_two_processes_share_the_cells(tmp_path: Path) -> None:
    sets = [word for option in (*MIXED, "envs.count=2", "envs.threads=1", "ppo.minibatches=1", "device=cpu",
            "envs.group_size=2", "envs.convolution=grouped") for word in ("--set", option)]  # fmt: skip
    command = [sys.executable, "-m", "esper_overwatch.trainer", "compare", "--policy", "ppo,no_growth"]
    size = ["--seeds", "2", "--episodes", "4", "--hosts", "2", "--to", str(tmp_path / "cells"), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [*command, *size, *sets],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    told, said = zip(*(process.communicate(timeout=500) for process in both), strict=True)
    assert [process.returncode for process in both] == [0, 0], said
    assert json.loads(told[0]) == json.loads(told[1])
    begun = [line for text in said for line in text.splitlines() if line.endswith(" episodes")]
    assert len(begun) == len(set(begun)) == 2 + 2 + 1, "each cell is computed once"


def steps_of(folder: Path, *sets: str) -> Steps:
    cfg = configuration(*MIXED, *sets)
    bench = Workbench(cfg, load_task(cfg.task, CPU), HeldOutHosts(count=6), CPU)
    return Steps(bench, 4, CellStore(folder), Progress(print))


def test_results_under_another_discount_are_others(tmp_path: Path) -> None:
    def files(*sets: str) -> set[str]:
        steps = steps_of(tmp_path, *sets)
        search = steps.search("constant", 1)
        return {steps.play(Word("no_growth")).cell.file, search.cell.file, steps.training(1).cell.file}

    assert files() == files()
    assert not files() & files("ppo.gamma=0.5")
    assert len(files() - files("envs.copies=2")) == 1, "trainings have copies, nothing else"


def test_training_depends_on_what_its_first_policy_holds(tmp_path: Path) -> None:
    def training(path: Path) -> str:
        return steps_of(tmp_path, f"policy.file={path}").training(1).cell.file

    first, moved = tmp_path / "first", tmp_path / "moved"
    first.write_bytes(b"a policy")
    before = training(first)
    first.rename(moved)
    assert training(moved) == before
    first.write_bytes(b"another")
    assert training(first) != before
    with pytest.raises(PolicyMismatch, match=r"policy .*gone cannot be read: No such file"):
        training(tmp_path / "gone")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ppo,nosuch", "--policy nosuch: is neither a file nor one of no_growth"),
        ("ppo+loud", "the control is"),
        ("oracle+shuffled", "looks at nothing"),
        ("fixed@3", "only constant and bandit have an epoch"),
        ("constant@late", "only constant and bandit have an epoch"),
    ],
)
def test_wrong_policies_are_refused(words: str, message: str) -> None:
    with pytest.raises(UnknownPolicy, match=message.replace("+", r"\+")):
        parse_policies([words])


def test_late_epoch_beyond_the_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="constant@3: it would never plant; name an epoch from 0 to 2"):
        run(tmp_path, "constant@3", configuration(*MIXED, "episode_epochs=3"))


def options(*sets: str) -> list[str]:
    return [word for one in (*sets, "device=cpu", "envs.threads=1") for word in ("--set", one)]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["task.batch_size=5000"], "task.batch_size = 5000: digits has"),
        (["host.width=16"], "is for text, and digits is images"),
        (["rounds=7"], "--set rounds=7: the rounds of a training follow from --episodes"),
        (["seed=5"], "--set seed=5: trainings have the seeds 1 to --seeds"),
        (["policy.kind=random"], "--set policy.kind=random: --policy names what is compared"),
        (["policy.learn=false"], "--set policy.learn=false: ppo is trained, and played greedily"),
        (["evaluation.rounds=2"], "--set evaluation.rounds=2: --policy, --hosts and --host-seed say"),
        (["cuda.allocator=nosuch:1"], "cuda.allocator = nosuch:1: torch has no setting nosuch"),
        (["wire.nosuch=1"], "--set: unknown key wire.nosuch"),
    ],
)
def test_configuration_is_checked_as_for_a_run(tmp_path: Path, sets: list[str], message: str) -> None:
    arguments = ["compare", "--to", str(tmp_path), "--policy", "ppo", "--episodes", "16"]
    done = esper(*arguments, *options(*sets, "envs.count=8"))
    assert done.exit_code == 9, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_section_has_an_effect_or_is_refused() -> None:
    used = {*OF_TRAINING, "episode_epochs", "device", "envs", "compile", "cuda"}
    used |= {"alerts", "telemetry", "drift", "anomalies", "profiler", "checkpoint", "journal", "metrics"}
    unused = {key for key in UNUSED if "." not in key}
    assert not used & unused
    assert used | unused == set(Config.__struct_fields__)
    assert {key for key in UNUSED if "." in key} <= OPTIONS.keys()


TINY = ("task.batches_per_epoch=1", "task.batch_size=4", "episode_epochs=2")


def test_file_for_runs_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('rounds = 7\nseed = 5\npolicy.kind = "random"\nevaluation.rounds = 2\n')
    arguments = ["compare", "--config", str(file), "--hosts", "1", "--policy", "no_growth", *options(*TINY)]
    done = esper(*arguments, "--to", str(tmp_path / "cells"), "--json")
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_rounds_of_a_schedule_follow_from_the_episodes(tmp_path: Path) -> None:
    sets = (*TINY, "ppo.schedule=linear", "host.channels=2,2,2", "envs.count=2", "ppo.minibatches=1")
    arguments = ["compare", "--to", str(tmp_path / "cells"), "--policy", "ppo", "--seeds", "1"]
    done = esper(*arguments, "--episodes", "4", "--hosts", "2", *options(*sets))
    assert done.exit_code == 0, done.output


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A policy of 16 hidden units."""
    cfg = configuration("seeds.blueprints=norm,depthwise")
    state = {
        "trainer": {"round": 1, "epoch": 0, "agent": Agent(cfg, slots=3, host_parameters=100).state_dict()},
        "config": msgspec.json.encode(cfg).decode(),
    }
    SavedPolicy.of_checkpoint(state, "mine", "0.2.0", "best.pt").write(tmp_path / "a.policy")
    return tmp_path / "a.policy"


def compare_ppo(folder: Path, *words: str, sets: tuple[str, ...] = ()) -> Result:
    sets = (*TINY, "host.channels=2,2,2", "envs.count=2", "ppo.minibatches=1", *sets)
    size = ("--to", str(folder), "--seeds", "1", "--episodes", "4", "--hosts", "2")
    return esper("compare", *size, *words, *options(*sets))


@pytest.mark.parametrize("is_compared", [False, True], ids=["begun with", "compared"])
def test_unfit_policy_is_refused_before_anything_is_played(
    tmp_path: Path, exported: Path, is_compared: bool
) -> None:
    """Before, when it was its turn, after the hours that those before it take."""
    words = ("--policy", f"no_growth,{exported}") if is_compared else ("--policy", "no_growth,ppo")
    sets = () if is_compared else (f"policy.file={exported}",)
    done = compare_ppo(tmp_path / "cells", *words, sets=sets)
    assert done.exit_code == 9, done.output
    assert "set seeds.blueprints=norm,depthwise" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "cells").iterdir()) == []


@pytest.mark.slow
def test_training_begins_with_a_policy_of_another_size(tmp_path: Path, exported: Path) -> None:
    """As a run does; before, its network did not fit unless policy.hidden was given, too."""
    sets = (f"policy.file={exported}", "seeds.blueprints=norm,depthwise")
    done = compare_ppo(tmp_path / "cells", "--policy", "ppo", sets=sets)
    assert done.exit_code == 0, done.output
    refused = compare_ppo(tmp_path / "other", "--policy", "ppo", sets=(*sets, "policy.hidden=8"))
    assert refused.exit_code == 9
    assert "was made with 16; leave it out" in refused.stderr


@pytest.mark.slow
def test_ppo_is_trained_whatever_a_file_says(tmp_path: Path) -> None:
    """Before, `policy.learn = false` of a run's file left it untrained."""
    file = tmp_path / "run.toml"
    results = []
    for text in ("", "policy.learn = false\n", "policy.learn = false\npolicy.greedy = true\n"):
        file.write_text(text)
        done = compare_ppo(tmp_path / "cells", "--policy", "ppo", "--json", "--config", str(file))
        assert done.exit_code == 0, done.output
        (policy,) = json.loads(done.stdout)["policies"]
        results.append(policy["figures"])
    assert results[0] == results[1] == results[2]
    (trained,) = (json.loads(path.read_text()) for path in (tmp_path / "cells").glob("train-ppo-*.json"))
    assert len(trained["result"]["explained_variance_within"]) == 2, "an update in each round"


def test_interrupted_comparison_says_what_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "begin_step", interrupt)
    done = compare_ppo(tmp_path / "cells", "--policy", "no_growth")
    assert done.exit_code == 130
    assert f"interrupted; {tmp_path / 'cells'} keeps what is done, and a training" in done.stderr
    assert done.stderr.count("; go on with: esper-daemon") == 1


def test_text_hosts_have_the_blueprints_of_text(tmp_path: Path) -> None:
    arguments = ["compare", "--preset", "text", "--hosts", "1", "--policy", "no_growth", *options(*TINY)]
    done = esper(*arguments, "--to", str(tmp_path / "cells"), "--json")
    assert done.exit_code == 0, done.output


def test_command_prints_json_and_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sets = [word for option in ("task.batches_per_epoch=1", "task.batch_size=4", "episode_epochs=3",
            "host.channels=2,2,2", "envs.threads=1", "device=cpu") for word in ("--set", option)]  # fmt: skip
    arguments = [
        "compare",
        "--policy",
        "no_growth,fixed",
        "--hosts",
        "2",
        "--to",
        str(tmp_path / "cells"),
        *sets,
    ]
    page = tmp_path / "page.html"
    done = esper(*arguments, "--json", "--html", str(page))
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert [policy["name"] for policy in summary["policies"]] == ["no_growth", "fixed"]
    assert summary["tasks"] == ["digits"]
    text = page.read_text()
    assert "<svg" in text
    assert "added parameters" in text
    assert "http://" not in text.replace("http://www.w3.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("http://purl.org", "")
    shown = esper(*arguments)
    assert "Policies on 2 held-out hosts of digits" in shown.stdout
