"""Files beside the journal: private folders, atomic files, the run's lock, CURVE keys.

Imports `messages`. `journal` and everything above it may import it, and the trainer for its files.
"""
