"""Encode and decode messages: JSON lines, multipart frames, addresses.

Imports `messages`. `storage` and everything above it may import it.
"""
