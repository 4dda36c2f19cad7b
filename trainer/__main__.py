"""`python -m trainer` is `esper-daemon`."""

from .cli.main import main

main()
