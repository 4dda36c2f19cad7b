"""Alerts that leave the machine: the user's rules, their judgement, and the delivery of what they raise.

Judged in the server's I/O thread, as incidents are; delivered by threads of its own. Imports the server and
all that lies below it; trainings and published runs attach it to their server.
"""
