"""`python -m tools.man_pages FOLDER`: the man pages of both programs, from click's commands."""

from __future__ import annotations

import sys
from pathlib import Path

from click_man.core import write_man_pages

from esper_overwatch.overwatch_tui.cli import main as terminal
from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.cli.main import main as daemon


def main() -> None:
    """Write one page per command into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for program, command in (("esper-daemon", daemon), ("esper-tui", terminal)):
        write_man_pages(program, command, version=__version__, target_dir=str(folder))


if __name__ == "__main__":
    main()
