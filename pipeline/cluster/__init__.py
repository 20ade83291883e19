"""Everything that uses Ray: the session, the generate actors, the tasks that prefetch input and write part files.

No other package of the pipeline imports Ray. Knows the worker that runs inside an actor, the units of the plan, and how
one part file is written. Does not know the lease, the ledger, or when and why a command publishes.
"""
