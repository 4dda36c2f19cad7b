"""`python -m esper_overwatch.trainer` is `esper-daemon`; both begin here.

Imports nothing at its top: ctrl+c may come while the command line is imported.
"""

import sys


def main() -> None:
    """The command line; ctrl+c while it is imported ends it without a word."""
    try:
        from .cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        from esper_overwatch.protocol.errors import INTERRUPTED_EXIT

        sys.exit(INTERRUPTED_EXIT)


if __name__ == "__main__":
    main()
