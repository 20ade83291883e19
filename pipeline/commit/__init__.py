"""Exactly once: the lease, the ledger, the run's record, staged units made into published parts, and their repair.

Knows storage, staged and published files, and units by their identity; knows nothing of where rows come from, of
prompts, engines or Ray.
"""
