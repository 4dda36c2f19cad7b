"""Overwatch: the terminal that watches and steers a run."""
