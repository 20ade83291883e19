"""Which sequences run: admission, slots, and which of them a forward takes.

Knows requests, pages and slots; knows no model, no forward and nothing of windows.
"""
