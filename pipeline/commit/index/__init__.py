"""The index: a temporary SQLite database of an output's units (planned, committed, published), to bound memory.

It is a cache, never the truth: the plan follows from the input, the other tables from the ledger and the publications
in the output. Every process builds it when it starts and loses it when it ends. Knows SQLite and the data classes of
:mod:`pipeline.types`; does not know storages, Ray or Arrow.
"""

from pipeline.commit.index.committed import CommittedUnits, row_of
from pipeline.commit.index.inputs import Inputs, ProcessedFile
from pipeline.commit.index.planned import PlannedUnits
from pipeline.commit.index.published import Index, IndexedUnit, PublishedUnit, PublishedUnits

__all__ = [
    "CommittedUnits",
    "Index",
    "IndexedUnit",
    "Inputs",
    "PlannedUnits",
    "ProcessedFile",
    "PublishedUnit",
    "PublishedUnits",
    "row_of",
]
