"""Sources: read input rows from files, URLs, data sets and memory, in slices that are the same on every run.

Knows files, Arrow and row numbers, and the output's storage, since in-memory input is written there. Does not know
models, Ray or units.
"""

from pipeline.sources.identity import RESTORE_INPUT, stamp_now
from pipeline.sources.source import BAD, HIDDEN, RAW, FileSource, SlicedSource, Source
from pipeline.sources.source_opening import ROWS, check_apart, check_files_apart, open_source, source_of

__all__ = [
    "BAD",
    "HIDDEN",
    "RAW",
    "RESTORE_INPUT",
    "ROWS",
    "FileSource",
    "SlicedSource",
    "Source",
    "check_apart",
    "check_files_apart",
    "open_source",
    "source_of",
    "stamp_now",
]
