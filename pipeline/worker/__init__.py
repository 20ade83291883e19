"""What runs inside an actor: an engine on a thread, units of rows through it, their results as Arrow tables.

Knows prompts, the plan's job and the engine's requests; knows no Ray, no ledger and nothing of publishing. Only
``load_engine`` needs torch, and only when it loads.
"""
