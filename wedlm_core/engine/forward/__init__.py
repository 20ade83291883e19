"""One packed forward: its rows laid out, the model run, tokens sampled, windows advanced.

Knows slots, windows, the model, attention and the KV pool; knows nothing of waiting requests, of how many masks a
sequence is worth, or of text.
"""
