"""The reward of an epoch, and the Shapley values of seeds.

Imports `config`, `compute`, `seeds` and `measurements`. `hosts`, `loop` and `telemetry` import it.
"""
