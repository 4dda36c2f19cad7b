"""Sweeps: Optuna proposes options, each trial is a run of its own, evaluations on held-out hosts judge it.

`space` and `trial_run` do without Optuna. `trainer.cli` imports this room, and `compare`, whose trainings are
such runs.
"""
