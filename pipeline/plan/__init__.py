"""The plan of a run: its job, its units, failed rows to retry, and the check that the input has not changed.

Knows sources, schemas and commits. Does not know prompts, engines or Ray.
"""
