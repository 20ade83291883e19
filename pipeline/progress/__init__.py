"""The progress of a run: snapshots of it, the time that is left, and the views that show it.

Knows counts and seconds, terminals and notebooks; does not know Ray, the engine, files or the rows of units. Nothing
here runs for each row: a thread of the driver makes a few snapshots a second, and only if somebody looks.
"""
