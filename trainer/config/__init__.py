"""The tree of options, where their values come from, and presets.

Imports `protocol` only. Everything in `trainer` may import it.
"""
