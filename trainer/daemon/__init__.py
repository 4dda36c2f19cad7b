"""The daemon's process: its life, its signals and logs, its place under systemd, its post-mortem.

May import everything; only `cli.start` imports it.
"""
