"""A run's journal as SQL tables.

Imports `protocol`; `cli` imports it.
"""
