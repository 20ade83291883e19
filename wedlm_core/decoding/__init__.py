"""How tokens are chosen, verified and committed: vectorised over sequences, on tensors only.

Knows windows, logits and noise; knows nothing of pages, queues, requests or text (but for :mod:`.stopping`).
"""
