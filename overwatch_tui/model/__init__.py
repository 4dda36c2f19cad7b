"""State of a run, folded from events. No terminal, no clock, no socket.

Imports `protocol` only. Everything in `overwatch_tui` may import it.
"""
