"""Sweeps: Optuna proposes options, each trial is a run of its own, evaluations on held-out hosts judge it.

Only `space` does without Optuna. `trainer.cli` alone imports this room.
"""
