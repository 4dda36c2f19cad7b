"""Publishing from a training loop of one's own: `esper_overwatch.publish` is the door.

Stands on `server`: the same journal, sockets, roles and requests as the daemon's. Nothing in `protocol`
imports it. Loading it needs neither numpy nor torch; their arrays are recognised by what they can do.
"""
