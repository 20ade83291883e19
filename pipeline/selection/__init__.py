"""Which rows of a table to keep: an expression, the best by a score, the best sample of a row, no near-duplicates.

Reads a table twice, in pieces, and decides in between; its facts about each row lie in a temporary database
on local disk, so memory does not grow with rows. Knows Arrow tables and their columns. Knows nothing of outputs, of
publications or of Ray.
"""
