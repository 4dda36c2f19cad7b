"""`esper-daemon`: one module per group of commands; `main` assembles them.

Needs neither torch nor numpy to be imported: a machine that only asks others has neither. Imports
`protocol` and `trainer.config` at load, and what trains or reads journals inside the command that needs
it. Only `trainer.__main__` imports it.
"""
