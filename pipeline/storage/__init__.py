"""Storage of an output, in a folder or on an object store: objects become visible as a whole or not at all.

Knows bytes, keys and file systems. Does not know rows, units or formats.
"""
