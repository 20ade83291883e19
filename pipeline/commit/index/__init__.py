"""What a process knows of an output's units, on disk and not in memory: planned, committed, published.

Never the truth, which is in the output (the plan follows from the input, the ledger and the publications from the
state folder): an index is made anew at every start and is gone with its process. Knows SQLite and the plain values of
:mod:`pipeline.types`; nothing of storages, Ray or Arrow.
"""

from pipeline.commit.index.committed import CommittedUnits
from pipeline.commit.index.planned import PlannedUnits
from pipeline.commit.index.published import IndexedUnit, PublishedUnit, PublishedUnits
from pipeline.commit.index.tables import Index

__all__ = ["CommittedUnits", "Index", "IndexedUnit", "PlannedUnits", "PublishedUnit", "PublishedUnits"]
