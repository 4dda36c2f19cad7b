"""Reward modes: one function each, from one epoch of N envs to the components of their reward.

Every component is a tensor [N]; they sum to the reward. Each has one weight in `RewardConfig`, and 0 switches
it off alone. docs/reference/training.md has a table of the components by mode.

Potentials (`EpochInputs.phi`) telescope (Ng, Harada and Russell, "Policy invariance under reward
transformations", 1999; those that fade with time: Devlin and Kudenko, "Dynamic potential-based reward
shaping", 2012): with discount 1 an episode of `shaped` earns what `sparse` does, but for rent being paid by
the epoch. `escrow` earns the least of the last three accuracies. The modes `basic`, `basic_plus` and
`simplified` are not made of potentials alone: they pay the final accuracy several times, and fossilising for
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_overwatch.trainer.config.policy_options import RewardConfig

MIN_PAID_CONTRIBUTION = 0.01
"""Least contribution, in accuracy, of a seed that is paid for having fossilised."""
FOSSILIZE_PAY = 0.3
"""`basic`: what each seed is paid that fossilises, whatever it contributes."""
HARMONY_PAY = 0.5
"""`basic`: what it is paid for the harmonic mean of its contribution and the host's gain."""
BASIC_TERMINAL = 5.0
"""`basic`: what the final accuracy pays at the end, beside what it has paid before."""
MAX_DRIP = 0.1
"""`basic_plus`: most that fossilised seeds are paid, or cost, in an epoch."""
SIMPLIFIED_TERMINAL = 3.0
"""`simplified`: as BASIC_TERMINAL."""
SEED_PAY = 2.0
"""`simplified`: what each fossilised seed pays that contributes at the end."""
LOSS_PAY = 5.0
"""`loss`: what an average epoch of a host pays that unlearns all of a guess's loss."""


@dataclass(frozen=True)
class RunContext:
    """Constants of a run that the modes need."""

    cfg: RewardConfig
    gamma: float
    epochs: int
    """T."""
    chance: float
    """Accuracy of guessing."""
    host_parameters: int
    min_training_epochs: int
    """Epochs that a seed trains before it may be blended."""
    guess_loss: float
    """Loss of a guess that ignores the input, nats."""


@dataclass(frozen=True)
class EpochInputs:
    """One epoch of N envs, as the modes see it."""

    run: RunContext
    last: bool
    """The episode ends with it."""
    phi: dict[str, Tensor]
    """Potentials [N] after the epoch: `gain` = accuracy above chance (kept where it was not measured; in the
    last epoch the mean of the last `RewardConfig.final_epochs`),
    `contribution` = weight * time left * sum of what blended seeds contribute, `stage` = weight * time left *
    sum of how far seeds are in their lives, `escrow` = what of the least of the last three gains is paid out,
    `loss` = what of the fall of the loss is."""
    phi_before: dict[str, Tensor]
    """`phi` an epoch ago."""
    contribution_NS: Tensor
    """Contributions of the blended seeds, as last measured; 0 elsewhere."""
    moved_NS: Tensor
    """Change of alpha in the epoch, signed; 0 where the governor restored it."""
    pruned_young: Tensor
    """int64 [N], seeds removed in the epoch before they could have been blended."""
    growth: Tensor
    """[N], added parameters relative to the host's."""
    grown: Tensor
    """[N], the same of those seeds that count and are `GRACE_EPOCHS` old."""
    final_loss: Tensor
    """[N], as share of that of a guess."""
    fossilized_NS: Tensor
    """bool [N, S], seeds that are part of their host."""
    fossilizing_NS: Tensor
    """bool [N, S], those that have become so in this epoch, for the first time."""
    acted: Tensor
    """bool [N], an op other than WAIT was done."""
    hindsight: Tensor
    """[N], see `HindsightCredit`."""
    rolled_back: Tensor
    """bool [N]"""

    def change(self, name: str) -> Tensor:
        """gamma Phi' - Phi [N]; after the last step there is no value left, so it pays Phi' undiscounted."""
        gamma = 1.0 if self.last else self.run.gamma
        return gamma * self.phi[name] - self.phi_before[name]

    @property
    def gain(self) -> Tensor:
        """[N], of the accuracy."""
        return self.run.cfg.gain * self.change("gain")

    @property
    def always(self) -> dict[str, Tensor]:
        """The components of every mode."""
        cfg = self.run.cfg
        found = {"rollback": -cfg.rollback_penalty * self.rolled_back}
        if cfg.op_fee:
            found["op_fee"] = -cfg.op_fee * self.acted
        if cfg.hindsight:
            found["hindsight"] = self.hindsight
        return found

    @property
    def is_worth_keeping(self) -> Tensor:
        """bool [N, S], seeds that give `MIN_PAID_CONTRIBUTION` at least to a host better than a guess."""
        return (self.contribution_NS >= MIN_PAID_CONTRIBUTION) & (self.phi["gain"] > 0.0).unsqueeze(1)

    def at_the_end(self, pay: float, of: Tensor) -> Tensor:
        """[N], so much of a tensor [N] in the last epoch, and 0 before."""
        return float(self.last) * self.run.cfg.terminal * pay * of

    @property
    def rent(self) -> Tensor:
        """[N], of a complete episode at the present growth."""
        return -self.run.cfg.rent * self.growth


Mode = Callable[[EpochInputs], dict[str, Tensor]]


def shaped(m: EpochInputs) -> dict[str, Tensor]:
    """The final accuracy less the rent, paid early as differences of potentials."""
    return {
        "gain": m.gain,
        "contribution": m.change("contribution"),
        "stage": m.change("stage"),
        "rent": m.rent / m.run.epochs,
    } | m.always


def sparse(m: EpochInputs) -> dict[str, Tensor]:
    """The final accuracy less the rent, paid at the end."""
    paid = float(m.last)
    return {"gain": paid * m.run.cfg.gain * m.phi["gain"], "rent": paid * m.rent} | m.always


def minimal(m: EpochInputs) -> dict[str, Tensor]:
    """`sparse`, and a fee on seeds thrown away before they could be of use."""
    return sparse(m) | {"early_prune": -m.run.cfg.early_prune * m.pruned_young}


def contribution(m: EpochInputs) -> dict[str, Tensor]:
    """Seeds are paid for what they contribute, epoch by epoch, and the host for what it is at the end.

    Together, seeds are never credited with more than what their host has gained over a guess, whatever their
    counterfactuals add up to; what they take away counts in full.
    """
    given = m.contribution_NS.clamp_min(0.0).sum(1)
    taken = m.contribution_NS.clamp_max(0.0).sum(1)
    bounded = torch.minimum(given, m.phi["gain"].clamp_min(0.0)) + taken
    return {
        "contribution": m.run.cfg.contribution * bounded / m.run.epochs,
        "stage": m.change("stage"),
        "rent": m.rent / m.run.epochs,
        "shock": -m.run.cfg.shock * m.moved_NS.square().sum(1),
        "terminal": m.at_the_end(1.0, m.phi["gain"]),
    } | m.always


def escrow(m: EpochInputs) -> dict[str, Tensor]:
    """A lasting gain is paid out step by step; what did not last is given back, at the end at the latest."""
    return {"gain": m.run.cfg.gain * m.change("escrow"), "rent": m.rent / m.run.epochs} | m.always


def basic(m: EpochInputs) -> dict[str, Tensor]:
    """The accuracy as it grows and again at the end, less the rent; a bonus for each seed that is kept.

    The bonus is FOSSILIZE_PAY + HARMONY_PAY times the harmonic mean of the seed's contribution and the host's
    gain.
    """
    host = m.phi["gain"].unsqueeze(1)
    earned = m.fossilizing_NS & m.is_worth_keeping
    harmonic = 2.0 * m.contribution_NS * host / (m.contribution_NS + host).where(earned, 1.0)
    bonus = (FOSSILIZE_PAY + HARMONY_PAY * harmonic).where(earned, 0.0)
    return {
        "gain": m.gain,
        "rent": m.rent / m.run.epochs,
        "fossilize": m.run.cfg.fossilize * bonus.sum(1),
        "terminal": m.at_the_end(BASIC_TERMINAL, m.phi["gain"]),
    } | m.always


def basic_plus(m: EpochInputs) -> dict[str, Tensor]:
    """`basic`, and in each epoch what fossilised seeds contribute, up to MAX_DRIP; harm counts half."""
    given = torch.where(m.fossilized_NS, m.contribution_NS, 0.0)
    drip = torch.where(given < 0.0, given / 2.0, given).sum(1).clamp(-MAX_DRIP, MAX_DRIP)
    return basic(m) | {"drip": m.run.cfg.drip * drip}


def simplified(m: EpochInputs) -> dict[str, Tensor]:
    """The accuracy as it grows and again at the end, and a sum for each seed worth keeping."""
    kept = (m.fossilized_NS & m.is_worth_keeping).sum(1)
    return {
        "gain": m.gain,
        "fossilize": float(m.last) * m.run.cfg.fossilize * SEED_PAY * kept,
        "terminal": m.at_the_end(SIMPLIFIED_TERMINAL, m.phi["gain"]),
    } | m.always


def loss(m: EpochInputs) -> dict[str, Tensor]:
    """For texts, whose accuracy says little: the fall of the loss, less what seeds cost once they are old."""
    return {
        "gain": m.run.cfg.gain * LOSS_PAY * m.change("loss"),
        "stage": m.change("stage"),
        "rent": -m.run.cfg.rent * LOSS_PAY * m.grown.log1p(),
        "terminal": m.at_the_end(LOSS_PAY, (1.0 - m.final_loss).clamp(-1.0, 1.0)),
    } | m.always


MODES: dict[str, Mode] = {
    "shaped": shaped,
    "sparse": sparse,
    "contribution": contribution,
    "minimal": minimal,
    "escrow": escrow,
    "basic": basic,
    "basic_plus": basic_plus,
    "simplified": simplified,
    "loss": loss,
}
