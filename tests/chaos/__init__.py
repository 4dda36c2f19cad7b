"""Chaos as a command: `python -m tests.chaos --minutes 15 [--seed N]`; `__main__` says what it checks."""
