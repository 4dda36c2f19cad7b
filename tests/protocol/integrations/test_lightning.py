"""Trainings of Lightning's own `Trainer`, seen and steered by the wire."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run

from .viewer import check_stopped, journal, needs, run_program, train_beside_viewer

pytestmark = [*needs("lightning", "lightning"), pytest.mark.usefixtures("home")]


def make_module(fail_at: int = -1) -> Any:
    import lightning
    import torch

    class Line(lightning.LightningModule):
        def __init__(self, learning_rate: float = 0.01) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.layer(batch).square().mean()
            self.log("train/loss", loss)
            if self.global_step == fail_at:
                raise ValueError("the data is gone")
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("validation/loss", self.layer(batch).square().mean())

        def test_step(self, batch: Any, number: int) -> None:
            self.log("test/loss", self.layer(batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.ones(64, 2), batch_size=16)

        val_dataloader = test_dataloader = train_dataloader

    return Line()


def make_trainer(callback: Any, folder: Path, **more: Any) -> Any:
    from lightning.pytorch import Trainer

    return Trainer(
        callbacks=[callback, *more.pop("callbacks", [])],
        accelerator="cpu",
        default_root_dir=folder,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"logger": False, "enable_checkpointing": False, "max_epochs": 3, **more},
    )


def test_viewer_follows_saves_and_ends_a_fit(tmp_path: Path) -> None:
    import torch

    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    trainer = make_trainer(LightningCallback("line"), tmp_path, max_epochs=1_000_000)
    names = {"train/loss", "validation/loss", "epoch"}
    seen = train_beside_viewer(lambda: trainer.fit(make_module()), "line", names)
    check_stopped("line", seen)
    assert seen.names == names
    assert (seen.config["learning_rate"], seen.config["parameters"]) == (0.01, 3)
    assert seen.config["trainer"]["max_epochs"] == 1_000_000
    saved = torch.load(seen.saved["path"], weights_only=True)
    assert saved["state_dict"].keys() == {"layer.weight", "layer.bias"}
    assert saved["global_step"] <= trainer.global_step
    assert seen.saved["path"].endswith("-asked.ckpt")


@pytest.mark.nightly
def test_steps_and_checkpoints_are_those_of_lightning(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    callback = LightningCallback("counted")
    keep = ModelCheckpoint(save_top_k=-1, filename="{epoch}")
    trainer = make_trainer(callback, tmp_path, callbacks=[keep], enable_checkpointing=True)
    trainer.fit(make_module())
    rows = [(e.step, e.values["epoch"]) for e in journal("counted", ev.Scalars) if "train/loss" in e.values]
    assert rows == [(step, step // 4) for step in range(12)]
    saved = [(e.name, e.path) for e in journal("counted", ev.Artifact)]
    folder = tmp_path / "checkpoints"  # as without the callback
    assert saved == [(f"checkpoint/epoch={i}.ckpt", str(folder / f"epoch={i}.ckpt")) for i in range(3)]
    assert trainer.loggers == []
    trainer.test(make_module(), verbose=False)
    assert "test/loss" in journal("counted", ev.Scalars)[-1].values
    assert [e.reason for e in journal("counted", ev.RunStopped)] == ["finished", "finished"]


def test_blocked_disk_holds_up_no_fit(tmp_path: Path, blocked_journal: threading.Event) -> None:
    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    with publish("blocked") as run:
        make_trainer(LightningCallback(run), tmp_path).fit(make_module())
        assert not blocked_journal.is_set()
        blocked_journal.set()
    assert [e.step for e in journal("blocked", ev.Scalars) if "train/loss" in e.values] == list(range(12))


@pytest.mark.nightly
def test_exception_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    trainer = make_trainer(LightningCallback("broken"), tmp_path)
    with pytest.raises(ValueError, match="the data is gone"):
        trainer.fit(make_module(fail_at=5))
    (stopped,) = journal("broken", ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (11, "ValueError: the data is gone")
    assert "training_step" in journal("broken", ev.LogLine)[0].traceback
    assert find_run("broken").state == "FAILED"
    again = make_trainer(LightningCallback("broken", resume=True), tmp_path)
    again.fit(make_module())
    assert find_run("broken").state == "COMPLETED"
    assert len(journal("broken", ev.RunStarted)) == 2


def test_run_of_ones_own_outlives_the_fit(tmp_path: Path) -> None:
    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    with publish("own", config={"seed": 1}) as run:
        callback = LightningCallback(run)
        trainer = make_trainer(callback, tmp_path, max_epochs=1)
        trainer.fit(make_module())
        callback.logger.log_hyperparams({"learning_rate": 0.01, "extra": 2})
        run.log(step=100, after=1.0)
    assert [e.values for e in journal("own", ev.Scalars)][-1] == {"after": 1.0}
    changed = journal("own", ev.RunConfigured)[-1].config
    assert changed.items() >= {"seed": 1, "learning_rate": 0.01, "extra": 2}.items()


@pytest.mark.nightly
def test_default_logger_has_its_files_too(tmp_path: Path) -> None:
    from esper_overwatch.protocol.integrations.lightning import LightningCallback

    trainer = make_trainer(LightningCallback("both"), tmp_path, logger=True)
    trainer.fit(make_module())
    assert Path(trainer.log_dir).is_relative_to(tmp_path / "lightning_logs")
    assert any(file.is_file() for file in Path(trainer.log_dir).iterdir())
    assert journal("both", ev.Scalars)


PAIR = """
import sys
from pathlib import Path
from esper_overwatch.protocol.integrations.lightning import LightningCallback
from tests.protocol.integrations.test_lightning import make_module, make_trainer
options = {"max_epochs": 1_000_000, "devices": 2, "strategy": "ddp_fork"}
make_trainer(LightningCallback("pair"), Path(sys.argv[1]), **options).fit(make_module())
"""


def test_two_processes_publish_once_and_obey(tmp_path: Path) -> None:
    seen = train_beside_viewer(lambda: run_program(PAIR, tmp_path), "pair", {"train/loss"})
    check_stopped("pair", seen)
    assert seen.config["trainer"]["world_size"] == 2
    assert len(journal("pair", ev.RunStarted)) == 1
