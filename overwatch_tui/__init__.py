"""Overwatch: the terminal that watches and steers a run.

Imports `protocol`, never `trainer`; no other package imports it.
"""
