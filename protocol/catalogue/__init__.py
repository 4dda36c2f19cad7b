"""The runs of a home folder as a set: what each is known by, a table of them, and how they are kept in order.

Imports `messages`, `codec`, `storage`, `journal` and `runs`.
"""
