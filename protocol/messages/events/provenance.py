"""Stream `life`: what a boot runs. It is large: not in `run.started`, which every viewer gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from .registry import event


@event("run.provenance", "life", keep=0)
@dataclass(kw_only=True)
class RunProvenance:
    """What a boot runs, beside its configuration. It follows `run.started` within seconds; snapshots lack it.

    Values of variables and options that are called a key, a token, a secret or a password are left out.
    """

    commit: str = ""
    """Of the git repository that the working directory is in; empty where `code_missing` says why."""
    dirty: bool | None = None
    """Whether files that git knows differ from the commit; null where git could not tell."""
    diff: list[str] = field(default_factory=list)
    """Lines of `git diff HEAD`, up to 64 KiB."""
    diff_cut: bool = False
    """True if lines are missing at the end of `diff`."""
    code_missing: str = ""
    """Why commit or difference are not known."""
    command: list[str]
    """The words of the command line, the interpreter's among them."""
    folder: str
    """The working directory; empty where it was removed."""
    python: str
    """Implementation and version, such as `CPython 3.11.9`."""
    executable: str
    """Path of the interpreter."""
    packages: dict[str, str]
    """Versions of the installed distributions by name, up to 1,000."""
    environment: dict[str, str]
    """Variables that can change what is computed: `ESPER_*`, `CUDA_*`, `OMP_*`, `TORCH_*` and the like."""
