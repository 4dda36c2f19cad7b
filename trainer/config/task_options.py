"""Options of the task: what the hosts learn, and from which examples."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section, count


class TaskConfig(Section, frozen=True):
    dataset: Annotated[
        str, Meta(description="Name of the dataset to learn; `esper-daemon data` lists them")
    ] = "digits"
    mixture: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description="Tasks of which each env draws one for each episode; empty = all learn task.dataset",
        ),
    ] = ()
    instances: Annotated[
        int, count("Instances of each generated task of a mixture, made from seeds from 0 on", le=4096)
    ] = 16
    data_dir: Annotated[
        str, Meta(description="Folder or text file with the dataset; empty = where it is registered")
    ] = ""
    augment: Annotated[
        tuple[Literal["crop", "flip"], ...],
        Meta(max_length=2, description="Random changes to the training images; empty = none"),
    ] = ()
    shared_batches: Annotated[
        bool, Meta(description="Whether all envs train on the same batches in one order")
    ] = False
    tokens: Annotated[
        Literal["characters", "bpe"],
        Meta(
            description="Tokens of a text: its characters, or byte-pair encoding learnt on its training part"
        ),
    ] = "characters"
    vocabulary: Annotated[
        int, count("Tokens of a byte-pair encoding (task.tokens=bpe) at most", ge=257, le=65_536)
    ] = 8192
    context: Annotated[int, count("Length in tokens of the text window that a host sees", ge=2, le=4096)] = 32
    batch_size: Annotated[
        int, count("Images, or windows of a text, per env and training step", le=65_536)
    ] = 64
    batches_per_epoch: Annotated[int, count("Training steps per epoch")] = 12

    @property
    def label(self) -> str:
        """One word for the task."""
        return "mixture" if self.mixture else self.dataset
