"""What is sampled of the machine, for runs of both kinds, the limits that control groups set a process, and
what a boot runs there: code, packages, environment.

Imports the events it fills in, and psutil; never torch. What is to be sampled of PyTorch the trainer adds.
"""
