"""A run's journal as Parquet or TensorBoard files.

Imports `protocol`, `config` and `query`; `cli` imports it.
"""
