"""PPO over growing networks: the algorithm, in order.

A round is N episodes in lockstep and one PPO update. An episode is T epochs of N freshly built hosts. In each
epoch the policy picks one action per host, the hosts train on their batches and are validated, and the change
in what they are worth is the reward.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .config import Config
from .data.dataset import Dataset
from .hosts.population import Population
from .policy.agent import Agent
from .policy.gae import gae
from .policy.rollout import Rollout
from .reward.shaped import Reward
from .seeds import lifecycle
from .signals import Signals


class Observer(Protocol):
    """Who watches the loop and carries out commands at its safe points."""

    def round_started(self, trainer: Trainer) -> None: ...

    def epoch_finished(self, trainer: Trainer) -> None: ...

    def round_finished(self, trainer: Trainer) -> None: ...
