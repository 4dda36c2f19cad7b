"""Benchmarks, one command each: `python -m benchmarks.NAME`; docs/lab/benchmarks.md has their figures.

Imports all three packages, and the test suite's oracle and terminal. Nobody imports it.
"""
