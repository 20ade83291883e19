"""Sources: rows of prompts from files and from memory, cut into slices that stay the same on every run.

Knows files, Arrow and row numbers; knows nothing of models, Ray or the output.
"""

from pipeline.sources.base import BAD, HIDDEN, RAW, FileSource, Source
from pipeline.sources.identity import RESTORE_INPUT, stamp_now
from pipeline.sources.opening import check_apart, open_source, source_of

__all__ = [
    "BAD",
    "HIDDEN",
    "RAW",
    "RESTORE_INPUT",
    "FileSource",
    "Source",
    "check_apart",
    "open_source",
    "source_of",
    "stamp_now",
]
