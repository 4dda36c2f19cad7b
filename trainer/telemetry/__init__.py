"""Events from an epoch's tensors: transfer, recorder, anomaly checks, profiler, machine samples.

Imports `protocol` and what is measured (`hosts`, `policy`, `reward`, `seeds`). `loop` and `hooks` import its
transfer and columns; `control`, `ranks` and `daemon` all of it.
"""
