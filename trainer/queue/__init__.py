"""Trainings that wait for their turn on this machine: the queue, and who works it off.

`sweep` starts its trials as entries are started; `trainer.cli` imports this room.
"""
