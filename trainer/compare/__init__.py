"""Policies compared on held-out hosts: rivals, trained policies, controls; intervals, a figure, a page.

Stands above `evaluation`, which plays the episodes; the command line alone imports it.
"""
