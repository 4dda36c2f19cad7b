"""Effects of commands on a live run, at the end of an epoch.

Imports `loop` and its `hooks`, `checkpoint`, `compute`, `telemetry` and `config`; `ranks` and
`daemon` import it.
"""
