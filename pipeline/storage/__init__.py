"""Where an output lives: whole objects that appear at once, in a folder or on an object store.

Knows bytes, names and file systems; knows nothing of rows, units or formats.
"""
