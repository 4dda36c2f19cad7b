"""A run's event log: written by the daemon's I/O thread, read by anyone, with the daemon or without it.

Imports `messages`, `codec` and `storage`. `runs`, `server` and `client` may import it.
"""
