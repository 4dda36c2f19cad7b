"""A live run as Prometheus reads it: what is counted, its names and units, the port.

Imports the server's side of `protocol`, `config`, `governor` and `telemetry`; `daemon` imports it.
"""
