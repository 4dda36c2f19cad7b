"""Messages on the wire: events, commands, replies, roles, thresholds and their JSON Schema.

Types and tables only: no I/O, and no other package of `protocol`. Everything may import it.
"""
