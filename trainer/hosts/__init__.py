"""The N hosts of a run as stacked programs: their training, validation, checkpoints of rows.

Imports `config`, `compute`, `data`, `seeds`, `measurements` and, for Shapley values, `reward`. `governor`,
`loop`, `telemetry`, `ranks` and `daemon` import it.
"""
