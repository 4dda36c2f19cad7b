"""Names of policies on the command line: `ppo`, `constant`, a file; with a control, as `ppo+shuffled`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.protocol.errors import EsperError

RULES = ("no_growth", "random", "heuristic", "fixed")
"""Rivals that are neither searched nor trained."""
SEARCHED = ("constant", "oracle")
"""Rivals whose schedules are searched, twice."""
RIVALS = (*RULES, *SEARCHED, "static")
CONTROLS = ("shuffled", "told")
ABOUT = {
    "no_growth": "never plants",
    "random": "any legal action",
    "heuristic": "plants where a host stands still, keeps what helps",
    "fixed": "convolutions in the first two slots",
    "constant": "the best of all constant schedules, found with as many episodes as PPO is trained with",
    "oracle": "the best constant schedule of each task, which it knows: a ceiling",
    "static": "the seeds that ppo (else constant) ends with, all there and blended from the first epoch",
    "ppo": "trained, greedy",
}
LATE_EPOCH = 5
"""Epoch of the default comparison at which the best constant schedule is planted once more."""


class UnknownPolicy(EsperError):
    """Not a policy that can be compared."""

    exit_code = 2


@dataclass(frozen=True)
class Word:
    """A policy of a comparison.

    Attributes:
        base: one of `ABOUT`, or a file's path.
        control: one of `CONTROLS`, or empty.
        epoch: from 0, at which `constant` plants.
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
        return None if self.base in ABOUT else Path(self.base)


def default_policies(episode_epochs: int) -> tuple[Word, ...]:
    """Every rival and `ppo`."""
    late = (f"constant@{LATE_EPOCH}",) if episode_epochs > LATE_EPOCH else ()
    return parse_policies([*RULES, "constant", *late, "oracle", "static", "ppo"])


def parse_policies(texts: Iterable[str]) -> tuple[Word, ...]:
    """Policies as they are named, separated by commas or one by one; each once.

    Raises:
        UnknownPolicy: there is neither a policy nor a file of a name, or its control does not go with it.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(map(_parse, names)))


def _parse(name: str) -> Word:
    if name not in ABOUT and Path(name).is_file():
        return Word(name)
    base, plus, control = name.partition("+")
    kind, at, epoch = base.partition("@")
    if at and kind in ABOUT:
        if kind != "constant" or not (epoch.isascii() and epoch.isdigit()):
            raise UnknownPolicy(
                f"--policy {name}: only constant has an epoch, from 0, at which it plants: constant@5"
            )
        base = kind
    if base not in ABOUT and not Path(base).is_file():
        raise UnknownPolicy(f"--policy {name}: is neither a file nor one of {', '.join(ABOUT)}")
    if plus and control not in CONTROLS:
        raise UnknownPolicy(f"--policy {name}: the controls are {' and '.join('+' + c for c in CONTROLS)}")
    if control == "told" and base != "ppo":
        raise UnknownPolicy(
            f"--policy {name}: only ppo is trained, so only ppo can be shown the task: ppo+told"
        )
    if control == "shuffled" and base in ("static", "oracle"):
        raise UnknownPolicy(
            f"--policy {name}: {base} looks at nothing, nor does it choose: leave +shuffled out"
        )
    return Word(base, control, int(epoch) if at and base == kind else 0)
