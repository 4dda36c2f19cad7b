"""Policies: the PPO agent, its network and rollout, and the rules that it is compared with.

Imports `config`, `compute`, `seeds` and `measurements`. `loop`, `hooks`, `telemetry`, `ranks` and `daemon`
import it.
"""
