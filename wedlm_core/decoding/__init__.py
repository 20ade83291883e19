"""Choose, verify and commit tokens, vectorised over sequences.

Knows windows, logits, sampling parameters and noise. Knows nothing of the KV pool, attention or scheduling. Only
:mod:`.stop_strings` knows text.
"""
