"""Options of seeds: what may be planted, their gates and limits, the governor that undoes them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from esper_overwatch.protocol.messages.thresholds import THRESHOLDS

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
        Meta(description="Strictness of gates G2, G3 and G5; docs/reference/training.md has their checks"),
    ] = "permissive"
    min_training_epochs: Annotated[
        int, count("Epochs that a seed trains before gate G2; 0 = a twelfth of the episode", ge=0)
    ] = 0
    min_blending_epochs: Annotated[
        int, count("Epochs that a seed blends before gate G3, with strict gates", ge=0)
    ] = 3
    embargo_epochs: Annotated[
        int,
        count("Epochs that a slot stays closed after a seed was pruned; clearing takes one more", ge=1),
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


class GatesConfig(Section, frozen=True):
    min_health: Annotated[
        float, number("Least share of a seed's tensors with a usable gradient, at G2 and G5", le=1.0)
    ] = 0.7
    min_gradient_norm: Annotated[
        float, number("L2 norm below which a tensor's gradient has vanished and is not usable", le=1e6)
    ] = 1e-7
    max_gradient_norm: Annotated[
        float,
        number("L2 norm above which a gradient has exploded: a tensor's is not usable, a seed fails G2"),
    ] = THRESHOLDS["gradient_exploding"].warning
    min_accuracy_gain: Annotated[
        float,
        number("Least gain of validation accuracy since a seed began to train, at G2 of strict gates", le=1),
    ] = 0.005
    min_gradient_ratio: Annotated[
        float,
        number("Least gradient norm of a seed relative to its host's, at G2 of strict gates", le=1e3),
    ] = 0.10
    min_contribution: Annotated[
        float, number("Least contribution in accuracy, at G5 of strict gates", ge=-1.0, le=1.0)
    ] = 0.01


class GovernorConfig(Section, frozen=True):
    veto: Annotated[
        bool, Meta(description="Whether actions that would make the governor undo the host are not executed")
    ] = True
    learnt_loss_ratio: Annotated[
        float,
        number("Share of a guess's loss below which a host has learnt something that it can forget", le=1.0),
    ] = 0.7
    forgotten_loss_ratio: Annotated[
        float,
        number("Share of a guess's loss from which on a host has forgotten what it had learnt", le=1.0),
    ] = 0.95
    divergence_sigmas: Annotated[
        float,
        number("Deviations above its mean of the episode from which on a host's loss diverges", le=1e6),
    ] = 6.0
    divergence_ratio: Annotated[
        float,
        number("Multiple of its mean of the episode from which on a host's loss diverges", ge=1.0, le=1e6),
    ] = 3.0
    divergence_epochs: Annotated[
        int, count("Epochs in a row that a host's loss diverges before it is rolled back")
    ] = 3
    veto_epochs: Annotated[
        int,
        count(
            "Epochs for which an env does not begin again what a rollback has undone, with governor.veto",
            ge=0,
        ),
    ] = 2
