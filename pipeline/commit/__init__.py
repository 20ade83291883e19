"""The exactly-once protocol: lease, ledger, run record, publishing of staged units as part files, recovery and repair.

Knows the storage, the formats of staged and published files, and units by their ids. Does not know sources, prompts,
engines or Ray. Whatever reads or writes the output raises SinkError if the store fails again and again.
"""
