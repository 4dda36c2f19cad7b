"""TensorBoard's `SummaryWriter` that publishes a run: one changed import makes a loop one that is watched.

from esper_overwatch.compat.tensorboard import SummaryWriter
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from esper_overwatch.protocol.publishing.description import to_json_tree
from esper_overwatch.protocol.publishing.pictures import ArrayPicture
from esper_overwatch.protocol.publishing.run import publish

logger = logging.getLogger(__name__)


class SummaryWriter:
    """Numbers, histograms, texts and images become those of a published run; films and the like are left out.

    Takes the arguments of `torch.utils.tensorboard.SummaryWriter`; nothing is written into `log_dir`.

    Args:
        log_dir: its last part, with `comment`, is the name of the run; None = one is made.
        comment: behind the name.
        options: of `publish`, such as `config`.

    Attributes:
        run: the published run.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        **options: Any,
    ) -> None:
        name = None if log_dir is None else f"{Path(log_dir).name}{comment}"
        self.run = publish(name, **options)
        self.log_dir = str(self.run.path if log_dir is None else log_dir)
        self._left_out: set[str] = set()

    def get_logdir(self) -> str:
        """The folder that was given, or that of the run."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Log a number; without a step at the newest one."""
        self._log(tag, scalar_value, global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log numbers of a group."""
        self._log(main_tag, tag_scalar_dict, global_step)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: str = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Log an array as a histogram."""
        self._log(tag, values, global_step)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Log a text."""
        self._log(tag, str(text_string), global_step)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Log an array as an image: floats from 0 to 1, or integers from 0 to 255."""
        self._log(tag, ArrayPicture(img_tensor, dataformats), global_step)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Log hyperparameters as a text of JSON, and metrics as numbers."""
        text = msgspec.json.encode(to_json_tree(hparam_dict)).decode()
        self._log("hparams", text, global_step)
        for name, value in metric_dict.items():
            self._log(name, value, global_step)

    def flush(self) -> None:
        """Wait until the journal has what was logged."""
        self.run.flush()

    def close(self) -> None:
        """End the run."""
        self.run.finish()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.finish(error)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Films, figures, graphs: nothing is published of them, which is said once for each kind."""
        if not name.startswith("add_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def leave_out(*_args: Any, **_named: Any) -> None:
            if name not in self._left_out:
                self._left_out.add(name)
                logger.warning("run %s: %s publishes nothing", self.run.name, name)

        return leave_out

    def _log(self, tag: Any, value: Any, step: Any) -> None:
        name: Any = tag if isinstance(tag, Hashable) else repr(tag)
        self.run.log({name: value}, step=max(0, self.run.step) if step is None else step)
