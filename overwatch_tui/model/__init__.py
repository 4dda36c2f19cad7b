"""What is known of the run, folded from events. No terminal, no clock, no socket.

Imports `protocol` only. Everything in `overwatch_tui` may import it.
"""
