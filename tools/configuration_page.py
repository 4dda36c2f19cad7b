"""Writes docs/reference/configuration.md from the types: `python -m tools.configuration_page`."""

from __future__ import annotations

from pathlib import Path

from esper_overwatch.trainer.config.load import OPTIONS, load_sourced, to_toml

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "configuration.md"

HEAD = """# Configuration

Made by `make docs` from `trainer/config/`; do not edit.

Sources, the later ones win: the defaults below, the saved configuration of a run that is resumed,
`--preset NAME` (`esper-daemon presets` lists them), `--config file.toml`, the environment,
`--set key=value`. An unknown key and a value out of range are errors that name the key, the value and what
is allowed. `esper-daemon options --all` prints this list with the values in force and where each comes from
(`default`, `task`, `preset NAME`, `file PATH`, `environment VARIABLE`, `--set`); a run keeps that in
`config.sources.json`. `esper-daemon options --toml` prints the merged configuration as a file to start from,
in which what nobody has chosen is a comment. A task brings defaults of its own (a text: the family of its
hosts, their learning rate and the blueprints) in the place of those below, never in that of a value that was
given. An option for images is refused with a text, and the other way round. So is one that has no effect
beside the others, such as `evaluation.hosts` without `evaluation.rounds`; what a preset brings, or what a
later source has made idle, gives way.

| key | default | allowed | what it is for | environment |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    rows = [
        f"| `{o.key}` | `{_short(o.default)}` | {o.allowed.replace('|', chr(92) + '|')} | {o.description} "
        f"| `{o.variable}` |"
        for o in OPTIONS.values()
    ]
    return HEAD + "\n".join(rows) + "\n\nAs a file:\n\n```toml\n" + _file() + "```\n"


def _file() -> str:
    sourced = load_sourced()
    return to_toml(sourced.config, sourced.sources)


def _short(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "empty"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
