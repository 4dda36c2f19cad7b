"""Rank 0 and the others: reports and orders at an epoch's boundaries.

Imports `loop` and what trains, `telemetry` and `control`; `daemon` imports it.
"""
