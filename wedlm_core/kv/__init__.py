"""The paged KV cache: who owns which page, which pages hold a known prefix, and the tensors themselves.

Knows pages, reference counts and token ids; knows nothing of requests, windows or the network. All but
:mod:`.pool` is plain Python without torch, tested as logic. Import the modules directly.
"""
