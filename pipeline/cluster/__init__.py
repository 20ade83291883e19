"""All of Ray: the session, the actors that generate, the tasks that read ahead and write parts.

Nothing else in the pipeline imports Ray. Knows the worker that runs inside an actor, and units of the plan; knows
nothing of what a command does with them, of the lease, the ledger or what is published.
"""
