"""The trainer daemon: PPO grows networks while they learn.

Imports `protocol`, never `overwatch_tui`; no other package imports it.
"""
