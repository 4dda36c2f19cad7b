"""Errors put into the product on purpose: `python -m tests.mutants`; `__main__` says what it tells."""
