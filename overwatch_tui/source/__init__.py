"""Sources of events, live or recorded, and the state of the link to the daemon.

Imports `protocol` and `model`; `render`, the session and the command line import it.
"""
