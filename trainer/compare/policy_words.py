"""Names of policies on the command line: `ppo`, `constant`, a file; with a control, as `ppo+shuffled`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.config.schema import Config

RULES = ("no_growth", "random", "heuristic", "fixed")
"""Rivals that are neither searched nor trained."""
SEARCHED = ("constant", "oracle")
"""Rivals whose schedules are searched, twice."""
RIVALS = (*RULES, *SEARCHED, "static")
PPO = "ppo"
WITH_EPOCH = ("constant", "bandit")
CONTROL = "shuffled"
KNOWN = (*RIVALS, "bandit", PPO)
LATE_EPOCH = 5
"""Epoch at which the bandit decides, where none is named, and the best constant is planted once more."""


class UnknownPolicy(EsperError):
    """Not a policy that can be compared."""

    exit_code = 2


@dataclass(frozen=True)
class Word:
    """A policy of a comparison.

    Attributes:
        base: one of `KNOWN`, or a file's path.
        control: `CONTROL`, or empty.
        epoch: from 0, at which `constant` or `bandit` plants.
    """

    base: str
    control: str = ""
    epoch: int = 0

    def __str__(self) -> str:
        late = f"@{self.epoch}" if self.epoch else ""
        return f"{self.base}{late}" + (f"+{self.control}" if self.control else "")

    @property
    def path(self) -> Path | None:
        """Path of the policy's file; None where the word names none."""
        return None if self.base in KNOWN else Path(self.base)


def default_policies(cfg: Config) -> tuple[Word, ...]:
    """Every rival, and PPO."""
    late = (f"constant@{LATE_EPOCH}", "bandit") if cfg.episode_epochs > LATE_EPOCH else ()
    return parse_policies([*RULES, "constant", "oracle", "static", *late, PPO])


def parse_policies(texts: Iterable[str]) -> tuple[Word, ...]:
    """Policies as they are named, separated by commas or one by one; each once.

    Raises:
        UnknownPolicy: there is neither a policy nor a file of a name, or its control does not go with it.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(map(_parse, names)))


def _parse(name: str) -> Word:
    if name not in KNOWN and Path(name).is_file():
        return Word(name)
    base, plus, control = name.partition("+")
    kind, at, epoch = base.partition("@")
    if at and kind in KNOWN:
        if kind not in WITH_EPOCH or not (epoch.isascii() and epoch.isdigit()):
            raise UnknownPolicy(
                f"--policy {name}: only {' and '.join(WITH_EPOCH)} have an epoch from 0 at which they plant, "
                f"as constant@{LATE_EPOCH}"
            )
        base = kind
    if base not in KNOWN and not Path(base).is_file():
        raise UnknownPolicy(f"--policy {name}: is neither a file nor one of {', '.join(KNOWN)}")
    if plus and control != CONTROL:
        raise UnknownPolicy(f"--policy {name}: the control is +{CONTROL}")
    if control and base in ("static", "oracle"):
        raise UnknownPolicy(
            f"--policy {name}: {base} looks at nothing, nor does it choose: leave +shuffled out"
        )
    if not (at and base == kind):
        epoch = str(LATE_EPOCH) if base == "bandit" else "0"
    return Word(base, control, int(epoch))
