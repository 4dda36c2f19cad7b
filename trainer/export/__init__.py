"""A run's journal as Parquet or TensorBoard files.

Imports `protocol` and `config`; `cli` imports it.
"""
