"""Evaluation of policies: whole episodes on hosts and task instances that no training sees.

Above the rooms that train, below the loop, which evaluates now and then, and whoever compares policies.
"""
