"""Runs for assistants that speak the Model Context Protocol: tools that read, and, if allowed, that steer.

Imports `protocol` and `query`; `cli` imports it.
"""
