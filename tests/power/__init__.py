"""A disk that forgets what was not synced, and cuts of its power: `python -m tests.power`."""
