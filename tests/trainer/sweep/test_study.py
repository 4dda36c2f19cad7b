"""Studies: one to a folder, whatever the folder's name, and read at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.command import esper

optuna = pytest.importorskip("optuna")

from esper_overwatch.trainer.sweep.space import Dimension  # noqa: E402
from esper_overwatch.trainer.sweep.study import FILE, SweepMismatch, SweepStudy, SweepTerms  # noqa: E402

TERMS = SweepTerms((Dimension("ppo.learning_rate", 1e-4, 1e-2),), "return", 5, 0, {})


def test_a_folder_keeps_the_sweep_it_was_made_for(tmp_path: Path) -> None:
    SweepStudy.create(tmp_path, "one", TERMS)
    with pytest.raises(SweepMismatch, match="holds the sweep one; go on with it by --name one"):
        SweepStudy.create(tmp_path, "two", TERMS)
    assert SweepStudy.create(tmp_path, "one", TERMS).name == "one"
    assert SweepStudy.open(tmp_path).name == "one"


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "ünï", "{a}", "a b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    SweepStudy.create(tmp_path / name, "one", TERMS)
    assert (tmp_path / name / FILE).is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert SweepStudy.open(tmp_path / name).name == "one"


@pytest.mark.parametrize(
    ("names", "exit_code", "words"),
    [
        ([], 3, "was ended before it began; give its command again"),
        (["one"], 3, "was ended before it began; give its command again"),
        (["one", "two"], 10, "holds several sweeps: one, two"),
    ],
)
def test_show_says_in_a_line_what_it_lacks(
    tmp_path: Path, names: list[str], exit_code: int, words: str
) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / FILE}")
    for name in names:
        study = optuna.create_study(storage=storage, study_name=name)
        if len(names) > 1:
            study.set_user_attr("terms", TERMS.to_builtins())
    shown = esper("sweep", "show", str(tmp_path))
    assert (shown.exit_code, shown.stderr.count("\n")) == (exit_code, 1), shown.stderr
    assert words in shown.stderr


def test_a_sweep_killed_as_it_began_begins_again(tmp_path: Path) -> None:
    optuna.create_study(storage=f"sqlite:///{tmp_path / FILE}", study_name="one", direction="maximize")
    assert SweepStudy.create(tmp_path, "one", TERMS).terms == TERMS.to_builtins()
    assert SweepStudy.open(tmp_path).name == "one"
