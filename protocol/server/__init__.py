"""The daemon's side of the wire: one I/O thread that owns the sockets and the journal.

Imports everything below it, but never `client`. The trainer imports it.
"""
