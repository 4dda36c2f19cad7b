"""How messages become bytes and come back: JSON lines, multipart frames, addresses.

Imports `messages`. `storage` and everything above it may import it.
"""
