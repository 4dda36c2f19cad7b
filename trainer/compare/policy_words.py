"""Names of policies on the command line: `ppo`, `constant`, a file; with a control, as `ppo+shuffled`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.protocol.errors import EsperError

RULES = ("no_growth", "random", "heuristic", "fixed")
"""Rivals that are neither searched nor trained."""
RIVALS = (*RULES, "constant", "halving", "oracle", "static")
CONTROLS = ("shuffled", "told")
ABOUT = {
    "no_growth": "never plants",
    "random": "any legal action",
    "heuristic": "plants where a host stands still, keeps what helps",
    "fixed": "convolutions in the first two slots",
    "constant": "the best of all constant schedules, found with as many episodes as PPO is trained with",
    "halving": "a seed in every slot, then the weaker halves go; the best of one for each blueprint",
    "oracle": "the best constant schedule of each task, which it knows: a ceiling",
    "static": "the seeds that ppo (else constant) ends with, all there and blended from the first epoch",
    "ppo": "trained, greedy",
}
DEFAULT_POLICIES = (
    "no_growth",
    "random",
    "heuristic",
    "fixed",
    "constant",
    "halving",
    "oracle",
    "static",
    "ppo",
)


class UnknownPolicy(EsperError):
    """Not a policy that can be compared."""

    exit_code = 2


@dataclass(frozen=True)
class Word:
    """A policy of a comparison.

    Attributes:
        base: one of `ABOUT`, or a file's path.
        control: one of `CONTROLS`, or empty.
    """

    base: str
    control: str = ""

    def __str__(self) -> str:
        return f"{self.base}+{self.control}" if self.control else self.base

    @property
    def path(self) -> Path | None:
        """Path of the policy's file; None where the word names none."""
        return None if self.base in ABOUT else Path(self.base)


def parse_policies(texts: Iterable[str]) -> tuple[Word, ...]:
    """Policies as they are named, separated by commas or one by one; each once.

    Raises:
        UnknownPolicy: there is neither a policy nor a file of a name, or its control does not go with it.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(map(_parse, names)))


def _parse(name: str) -> Word:
    base, plus, control = name.partition("+")
    if base not in ABOUT and Path(name).is_file():
        return Word(name)
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
    return Word(base, control)
