"""Training with Hugging Face's `Trainer`, published: `callbacks=[HuggingFaceCallback("my-run")]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from esper_overwatch.protocol.publishing.loop_commands import CommandCall
from esper_overwatch.protocol.publishing.run import PublishedRun

from .training_run import TrainingRun

AGREE_EVERY = 10
"""Steps between two looks for commands, where several processes have to agree."""
GROUPS = ("eval", "test")
"""`eval_loss` is published as `eval/loss`; a name without such a prefix belongs to training: `train/loss`."""


class HuggingFaceCallback(TrainerCallback):
    """Publishes a training: logs, arguments, checkpoints; obeys `stop` and `checkpoint`.

    Of several processes the first publishes, and all obey. `Trainer` tells its callbacks of no exception: a
    run that is to end with it although the program goes on is given as `with publish(...) as run`.

    Args:
        run: name of the run, None = one is made; or a run of `publish`, whose owner ends it.
        resume: go on in the run of this name where there is one.

    Raises:
        PublishError: `resume` with a run of `publish`.
    """

    def __init__(self, run: PublishedRun | str | None = None, *, resume: bool = False) -> None:
        self._training = TrainingRun(run, resume)
        self._save: CommandCall | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **_more: Any,
    ) -> None:
        """Publish the run, with the arguments and the model's configuration as its own."""
        if state.is_world_process_zero:
            config: Any = getattr(model, "config", None)
            self._training.start(
                {
                    **args.to_dict(),
                    "model": config.to_dict() if hasattr(config, "to_dict") else type(model).__name__,
                    "parameters": sum(p.numel() for p in model.parameters()),
                }
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        """Publish what the trainer logs."""
        self._training.log({_grouped(name): value for name, value in (logs or {}).items()}, state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> None:
        """Obey what clients have asked for."""
        alone = args.world_size == 1
        if not alone and state.global_step % AGREE_EVERY:
            return
        save, *asked = self._training.take_commands()
        self._save = save or self._save
        if not alone:
            asked = broadcast_object_list(asked)
        control.should_save |= asked[0]
        control.should_training_stop |= asked[1]

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> None:
        """Publish where a checkpoint is."""
        folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        call, self._save = self._save, None
        if folder.is_dir():
            self._training.tell_files(folder, state.global_step, call)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> None:
        """End the run."""
        self._training.finish()


def _grouped(name: str) -> str:
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in GROUPS and rest else f"train/{name}"
