"""Options of seeds: what may be planted, their gates and limits, the governor that undoes them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section, count, number


class SeedsConfig(Section, frozen=True):
    blueprints: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            max_length=16,
            description=(
                "Blueprints that the policy may plant; NAME:OPTION=VALUE chooses a size, such as lora:rank=8"
            ),
        ),
    ] = ("norm", "attention", "depthwise", "conv_light")
    gates: Annotated[
        Literal["permissive", "strict"],
        Meta(description="Strictness of the gates G2, G3 and G5; docs/training.md lists their checks"),
    ] = "permissive"
    min_training_epochs: Annotated[
        int, count("Epochs that a seed trains before gate G2; 0 = a twelfth of the episode", ge=0)
    ] = 0
    min_blending_epochs: Annotated[
        int, count("Epochs that a seed blends before gate G3, with strict gates", ge=0)
    ] = 3
    embargo_epochs: Annotated[
        int, count("Epochs that a slot stays closed after its seed was pruned", ge=1)
    ] = 2
    learning_rate: Annotated[
        float, number("Learning rate of seeds (SGD); 0 = that of their hosts", le=10.0)
    ] = 0.0
    weight_decay: Annotated[
        float,
        number("Weight decay of a seed's kernels and matrices, as in torch.optim.SGD; 0 = none", le=1.0),
    ] = 0.0
    max_grad_norm: Annotated[
        float, number("L2 norm to which each seed's gradient is clipped; 0 = not clipped", le=1e6)
    ] = 0.25
    max_live: Annotated[
        int,
        count(
            "Seeds of one host that may be on their way, from GERMINATED to HOLDING, at once; 0 = no limit",
            ge=0,
            le=64,
        ),
    ] = 0
    one_at_a_time: Annotated[
        bool,
        Meta(description="Whether nothing is planted in a host before its newest seed is in HOLDING or gone"),
    ] = False


class GovernorConfig(Section, frozen=True):
    veto: Annotated[
        bool, Meta(description="Whether actions that would make the governor undo the host are not executed")
    ] = True
    veto_epochs: Annotated[
        int,
        count(
            "Epochs for which an env does not begin again what a rollback has undone, with governor.veto",
            ge=0,
        ),
    ] = 2
