"""`esper-daemon completion`: let the shell complete both programs' words."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.storage.folders import replace_file

from .output import PROGRAM, print_lines

_PROGRAMS = (PROGRAM, "esper-tui")
_FILES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/{}"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_{}"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/{}.fish"),
}
"""Place of each shell's completions: a variable, its default below the home folder, a file there."""
_NOTES = {
    "bash": "new shells complete them, where the package bash-completion is installed",
    "zsh": "before compinit, ~/.zshrc must have: fpath+=({folder})",
    "fish": "new shells complete them",
}


@click.command()
@click.argument("shell", type=click.Choice([*_FILES]), required=False)
def completion(shell: str | None) -> None:
    """Install the completion of esper-daemon and esper-tui for SHELL; without it, for the one in $SHELL."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _FILES:
        raise click.UsageError(f"name a shell: {', '.join(_FILES)}")
    variable, standard, pattern = _FILES[shell]
    base = os.environ.get(variable, "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / standard
    source = get_completion_class(shell)
    assert source is not None
    for program in _PROGRAMS:
        path = root / pattern.format(program)
        asked_by = f"_{program.replace('-', '_').upper()}_COMPLETE"
        text = source(click.Command(program), {}, program, asked_by).source()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise EsperError(f"{path} cannot be written: {error.strerror or error}") from None
        print_lines([f"wrote {path}"])
    print_lines([_NOTES[shell].format(folder=path.parent)])
