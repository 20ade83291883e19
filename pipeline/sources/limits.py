"""Limits on the size and nesting of input rows; a row beyond them is a bad row, which fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipeline.errors import SourceError

MAX_ROW_BYTES = 32 * 2**20
"""Longest row of a text file. A prompt of a million tokens has about 4 MiB; a reader keeps one row in memory at least.
It bounds memory also where a compressed file of kilobytes holds one line of gigabytes."""
MAX_DEPTH = 32
"""Levels of lists and mappings inside a cell. Parquet cannot be read from about 48 levels of lists on, Arrow's own
format from 64, and at some thousands the conversion to Arrow ends the process."""
INFER_BYTES = 64 * 2**20
"""Column types are inferred from the first rows; no more than so many bytes of them are held in memory."""
MAX_COLUMNS = 10_000
"""Columns of text files and of rows in memory. Each costs some 0.3 ms in every step of a run, whatever it holds."""
DEPTH_RULE = f"nested in more than {MAX_DEPTH} levels of lists and objects. Flatten it"


def check_column_count(names: Collection[object], where: str) -> None:
    """Refuse more columns than :data:`MAX_COLUMNS` before anything is done for each of them.

    Raises:
        SourceError: there are more.
    """
    if len(names) > MAX_COLUMNS:
        raise SourceError(
            f"{where}: it has {len(names)} columns, and the limit is {MAX_COLUMNS}. Put columns that no prompt reads "
            "into one column of objects, or leave them out."
        )


def long_row_rule(size: int) -> str:
    """The message about a row of this number of bytes."""
    return f"the row has {size} bytes, and {MAX_ROW_BYTES} is the most. Shorten or split it"


def is_too_deep(value: Any) -> bool:
    """Whether lists and mappings are nested deeper than :data:`MAX_DEPTH`, or hold themselves."""
    levels = [iter((value,))]
    while levels:
        for item in levels[-1]:
            if isinstance(item, (str, bytes, int, float)) or item is None:
                continue
            if isinstance(item, Mapping):
                levels.append(iter(item.values()))
            elif isinstance(item, (list, tuple)):
                levels.append(iter(item))
            else:
                continue
            if len(levels) > MAX_DEPTH + 1:
                return True
            break
        else:
            levels.pop()
    return False
