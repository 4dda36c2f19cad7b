"""The trainer daemon: PPO grows networks while they learn."""
