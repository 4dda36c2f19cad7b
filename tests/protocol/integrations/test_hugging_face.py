"""Trainings of Hugging Face's own `Trainer`, seen and steered by the wire."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run

from .viewer import check_stopped, journal, needs, run_program, train_beside_viewer

pytestmark = [*needs("transformers", "huggingface"), pytest.mark.usefixtures("home")]


class Rows:
    """A dataset of the same few tokens; the row `end` cannot be read."""

    def __init__(self, end: int = 32, broken: bool = False) -> None:
        self.end, self.broken = end, broken

    def __len__(self) -> int:
        return 32

    def __getitem__(self, row: int) -> dict[str, Any]:
        import torch

        if self.broken and row == self.end:
            raise ValueError(f"row {row} is gone")
        tokens = torch.arange(8)
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(callback: Any, folder: Path, rows: Rows | None = None, **more: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    args = TrainingArguments(
        **{
            "output_dir": str(folder / "out"),
            "use_cpu": True,
            "report_to": [],
            "logging_steps": 1,
            "save_strategy": "no",
            "per_device_train_batch_size": 8,
            "disable_tqdm": True,
            "max_steps": 8,
            **more,
        }
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=rows or Rows(),
        eval_dataset=Rows(),
        callbacks=[callback],
    )


def test_viewer_follows_saves_and_ends_a_training(tmp_path: Path) -> None:
    from safetensors import safe_open

    from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback

    trainer = make_trainer(
        HuggingFaceCallback("words"), tmp_path, max_steps=1_000_000, eval_strategy="steps", eval_steps=3
    )
    names = {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss"}
    seen = train_beside_viewer(trainer.train, "words", names)
    check_stopped("words", seen)
    assert trainer.state.global_step < 1_000_000
    assert (seen.config["max_steps"], seen.config["logging_steps"]) == (1_000_000, 1)
    assert seen.config["model"]["n_embd"] == 8
    folder = Path(seen.saved["path"])
    assert seen.artifacts[f"checkpoint/{folder.name}/model.safetensors"] == str(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert "transformer.wte.weight" in weights.keys()  # noqa: SIM118 -- it is no dict
    callback = HuggingFaceCallback("words", resume=True)
    trainer = make_trainer(callback, tmp_path, max_steps=10**6 + 1)
    step = int(folder.name.rpartition("-")[2])
    trainer.args.max_steps = step + 2
    trainer.train(resume_from_checkpoint=str(folder))
    assert [e.step for e in journal("words", ev.Scalars)][-3:] == [step + 1, step + 2, step + 2]
    assert [e.reason for e in journal("words", ev.RunStopped)][-1] == "finished"
    trainer.evaluate()
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    last = journal("words", ev.Scalars)[-1]
    assert (last.step, "eval/loss" in last.values) == (step + 2, True), "an evaluation after the training"


@pytest.mark.nightly
def test_steps_and_checkpoints_are_those_of_the_trainer(tmp_path: Path) -> None:
    from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback

    trainer = make_trainer(HuggingFaceCallback("steps"), tmp_path, save_strategy="steps", save_steps=4)
    trainer.train()
    steps = [e.step for e in journal("steps", ev.Scalars) if "train/loss" in e.values]
    assert steps == list(range(1, 9))
    last = journal("steps", ev.Scalars)[-1]
    assert {"train/train_loss", "train/train_runtime"} <= last.values.keys()
    saved = {e.name.rpartition("/")[0] for e in journal("steps", ev.Artifact)}
    assert saved == {"checkpoint/checkpoint-4", "checkpoint/checkpoint-8"}


def test_blocked_disk_holds_up_no_training(tmp_path: Path, blocked_journal: threading.Event) -> None:
    from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback

    with publish("blocked") as run:
        make_trainer(HuggingFaceCallback(run), tmp_path).train()
        assert not blocked_journal.is_set()
        blocked_journal.set()
    steps = [e.step for e in journal("blocked", ev.Scalars) if "train/loss" in e.values]
    assert steps == list(range(1, 9))


@pytest.mark.nightly
def test_exception_ends_a_run_of_ones_own(tmp_path: Path) -> None:
    from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback

    def train() -> None:
        with publish("gone") as run:
            make_trainer(HuggingFaceCallback(run), tmp_path, Rows(end=3, broken=True)).train()

    with pytest.raises(ValueError, match="row 3 is gone"):
        train()
    (stopped,) = journal("gone", ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (11, "ValueError: row 3 is gone")
    assert find_run("gone").state == "FAILED"


PAIR = """
import sys
from pathlib import Path
import torch
from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback
from tests.protocol.integrations.test_hugging_face import make_trainer
make_trainer(HuggingFaceCallback("pair"), Path(sys.argv[1]), max_steps=1_000_000).train()
torch.distributed.destroy_process_group()
"""


@pytest.mark.nightly
def test_two_processes_publish_once_and_obey(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    seen = train_beside_viewer(lambda: run_program(PAIR, tmp_path, *launcher), "pair", {"train/loss"})
    check_stopped("pair", seen)
    assert len(journal("pair", ev.RunStarted)) == 1


PROGRAM = """
import sys
from pathlib import Path
from esper_overwatch.protocol.integrations.hugging_face import HuggingFaceCallback
from tests.protocol.integrations.test_hugging_face import Rows, make_trainer
make_trainer(HuggingFaceCallback("program"), Path(sys.argv[1]), Rows(end=3, broken=True)).train()
"""


@pytest.mark.nightly
def test_exception_that_ends_the_program_is_told(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    (stopped,) = journal("program", ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (11, "ValueError: row 3 is gone")
    assert "__getitem__" in journal("program", ev.LogLine)[0].traceback
