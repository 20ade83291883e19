"""The inside of a generate actor: an engine on a thread, units run through it, and their results as Arrow tables.

Knows prepared prompts, the plan's job, the engine's requests and the staging of units. Does not know Ray, the ledger or
publishing. Only ``load_engine`` imports torch, when it is called.
"""
