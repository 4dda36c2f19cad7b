"""The machine's arithmetic: devices, random numbers, stacked operations, compilation, ranks.

Imports `config`. What trains, `telemetry`, `control`, `ranks`, `doctor` and `daemon` may import it.
"""
