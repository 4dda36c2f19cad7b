"""`python -m trainer` is `esper-daemon`."""

from .cli import main

main()
