"""The paged KV cache: page allocation, prefix sharing and the key and value tensors.

Knows pages, reference counts, token ids, and the KV shape of a model. Knows nothing of requests, windows or the
network. Only :mod:`.pool` needs torch. Import the modules directly.
"""
