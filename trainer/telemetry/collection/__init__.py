"""Collection of the next epoch: levels, escalations, and the interval of what is costly.

Imports `config` and `protocol`; the rest of `telemetry`, `control` and `daemon` import it.
"""
