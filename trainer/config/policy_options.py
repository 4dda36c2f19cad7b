"""Options of the policy: its network, PPO, the reward."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import Section, count, number


class PolicyConfig(Section, frozen=True):
    kind: Annotated[
        Literal["ppo", "heuristic", "fixed", "random", "no_growth", "constant"],
        Meta(description="Policy that chooses the actions: PPO, or a fixed rule to compare it with"),
    ] = "ppo"
    constant: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description=(
                "Blueprint that policy.kind=constant plants in each slot at an episode's beginning, or none"
            ),
        ),
    ] = ()
    file: Annotated[
        str,
        Meta(
            description=(
                "File of a policy to begin with, as `esper-daemon policy export` writes it; empty = untrained"
            )
        ),
    ] = ""
    learn: Annotated[bool, Meta(description="Whether PPO learns; if not, it acts as it is")] = True
    greedy: Annotated[
        bool,
        Meta(
            description=(
                "Whether PPO does what it would more probably than not have done by now, in place of drawing "
                "an action; needs policy.learn=false"
            )
        ),
    ] = False
    temperature: Annotated[
        float,
        number(
            "Divisor of the logits that PPO draws actions from: below 1 it acts more surely, above 1 more "
            "evenly; needs policy.learn=false",
            ge=0.01,
            le=100.0,
        ),
    ] = 1.0
    decision_epochs: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=99_999)], ...],
        Meta(
            max_length=64,
            description=(
                "Epochs of an episode, from 0, at which PPO decides what to plant in all empty slots; seeds "
                "then grow as their gates allow. Empty = one op of any kind in each epoch"
            ),
        ),
    ] = ()
    hidden: Annotated[int, count("Units of the policy's LSTM and of the layer before it", ge=8, le=4096)] = 64


class PPOConfig(Section, frozen=True):
    learning_rate: Annotated[float, number("Learning rate of the policy (Adam)", le=1.0)] = 1e-3
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Meta(description="Course of ppo.learning_rate to 0 over the run's rounds of PPO"),
    ] = "constant"
    gamma: Annotated[float, number("Discount per epoch", le=1.0)] = 1.0
    gae_lambda: Annotated[float, number("Lambda of generalised advantage estimation", le=1.0)] = 0.95
    clip: Annotated[
        float, number("Distance from 1 at which probability ratios are clipped", ge=0.01, le=1.0)
    ] = 0.2
    epochs: Annotated[int, count("Passes over a rollout per update", le=100)] = 8
    minibatches: Annotated[
        int, count("Minibatches per pass; each has the complete sequences of some envs", le=1024)
    ] = 2
    entropy_coefficient: Annotated[float, number("Weight of the entropy bonus in the PPO loss", le=1.0)] = (
        0.05
    )
    entropy_final: Annotated[
        float, number("Entropy coefficient after ppo.entropy_rounds rounds; unused where those are 0", le=1.0)
    ] = 0.005
    entropy_rounds: Annotated[
        int,
        count(
            "Rounds over which the entropy coefficient moves linearly to ppo.entropy_final; 0 = never", ge=0
        ),
    ] = 0
    value_coefficient: Annotated[float, number("Weight of the value loss in the PPO loss", le=10.0)] = 0.5
    max_grad_norm: Annotated[
        float, number("L2 norm to which the policy's gradient is clipped", ge=1e-6, le=1e6)
    ] = 0.5
    target_kl: Annotated[
        float, number("KL divergence in nats beyond which an update stops early; 0 = never", le=10.0)
    ] = 0.01


class RewardConfig(Section, frozen=True):
    mode: Annotated[
        Literal[
            "shaped",
            "sparse",
            "contribution",
            "minimal",
            "escrow",
            "basic",
            "basic_plus",
            "simplified",
            "loss",
        ],
        Meta(description="Reward function; docs/reference/training.md lists the components of each"),
    ] = "shaped"
    gain: Annotated[
        float,
        number("Weight of the accuracy above chance (in the mode loss: of the loss) that is gained", le=10.0),
    ] = 1.0
    terminal: Annotated[
        float,
        number(
            "Weight of what the end of an episode pays, in the modes contribution, basic, basic_plus, "
            "simplified and loss",
            le=10.0,
        ),
    ] = 1.0
    rent: Annotated[float, number("Cost of added parameters, per multiple of the host's own", le=10.0)] = 0.01
    contribution: Annotated[
        float,
        number("Weight of the accuracy that seeds contribute, in the modes shaped and contribution", le=10.0),
    ] = 0.2
    stage: Annotated[
        float,
        number(
            "Weight of how far seeds are in their life cycle, in the modes shaped, contribution and loss",
            le=10.0,
        ),
    ] = 0.2
    shock: Annotated[
        float,
        number("Cost of moving alpha, per square of an epoch's step, in the mode contribution", le=10.0),
    ] = 0.02
    early_prune: Annotated[
        float, number("Cost of each seed pruned before it could blend, in the mode minimal", le=10.0)
    ] = 0.05
    rollback_penalty: Annotated[
        float, number("Cost of each epoch that the governor rolled back", le=100.0)
    ] = 0.2
    fossilize: Annotated[
        float,
        number(
            "Weight of what a seed is paid for that fossilises and contributes, in the modes basic, "
            "basic_plus and simplified",
            le=10.0,
        ),
    ] = 1.0
    drip: Annotated[
        float,
        number("Weight of what fossilised seeds contribute in each epoch, in the mode basic_plus", le=10.0),
    ] = 1.0
    op_fee: Annotated[float, number("Cost of each op other than WAIT, in every mode", le=10.0)] = 0.0
    hindsight: Annotated[
        float,
        number(
            "Reward for each unit of accuracy that a seed gave to one that has fossilised, once the former "
            "is pruned; at most 0.2 an episode, in every mode",
            le=10.0,
        ),
    ] = 0.0
    final_epochs: Annotated[
        int,
        count(
            "Epochs at an episode's end whose mean accuracy counts as the final one, where `gain` or "
            "`terminal` pay an accuracy; the mode escrow takes the least of the last three",
            le=100,
        ),
    ] = 1
    only_fossilized: Annotated[
        bool,
        Meta(
            description=(
                "Whether in the last reward.final_epochs epochs, and on the test images, seeds that have not "
                "fossilised are left out of their hosts: of accuracy and of parameters"
            )
        ),
    ] = False


PAYING_MODES = {
    "gain": "shaped sparse minimal escrow basic basic_plus simplified loss",
    "terminal": "contribution basic basic_plus simplified loss",
    "rent": "shaped sparse minimal contribution escrow basic basic_plus loss",
    "contribution": "shaped contribution",
    "stage": "shaped contribution loss",
    "shock": "contribution",
    "early_prune": "minimal",
    "fossilize": "basic basic_plus simplified",
    "drip": "basic_plus",
}
"""By weight of the reward, the modes that pay by it; the other options of the reward are for every mode."""


class EvaluationConfig(Section, frozen=True):
    rounds: Annotated[
        int,
        count("Interval in rounds between evaluations of the policy on held-out hosts; 0 = never", ge=0),
    ] = 0
    hosts: Annotated[
        int, count("Held-out hosts of an evaluation; a mixture deals them out to its tasks", le=4096)
    ] = 40
    seed: Annotated[
        int,
        count(
            "Seed of the held-out hosts, the same for all runs to compare; esper-daemon compare has others, "
            "of seed 1",
            ge=0,
            le=2**31 - 1,
        ),
    ] = 2
    rivals: Annotated[
        tuple[Literal["no_growth", "fixed", "heuristic", "random"], ...],
        Meta(
            max_length=4,
            description="Rules that are played on the same hosts, each once, in the run's first rounds",
        ),
    ] = ("no_growth", "fixed", "heuristic")
    constant: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description=(
                "Constant schedule that is one more rival, as policy.constant; empty = there is none"
            ),
        ),
    ] = ()
