"""The side that watches and commands: subscriptions, requests, and the ways to a daemon.

Imports everything below it, but never `server`. `protocol` itself is the door to it.
"""
