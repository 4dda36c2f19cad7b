"""Seeds: blueprints, their life from germination to fossil, and how they are blended in.

Imports `config`, `compute`, `measurements` and `plugins`. The rest of what trains and `telemetry` import it.
"""
