"""`python -m overwatch_tui` is `esper-tui`."""

from .cli import main

main()
