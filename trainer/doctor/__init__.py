"""`esper-daemon doctor`: what is wrong with this machine, or how a run ended, in words.

Reads files and journals. Imports `protocol`, `compute` and `checkpoint`; `cli` imports it, and `daemon` does
for the form of a post-mortem.
"""
