"""From what the user gave to a source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.sources.base import Source
from pipeline.sources.jsonl import SUFFIXES as JSONL_SUFFIXES
from pipeline.sources.jsonl import JsonlSource
from pipeline.sources.memory import spool
from pipeline.sources.parquet import SUFFIXES as PARQUET_SUFFIXES
from pipeline.sources.parquet import ParquetSource
from pipeline.storage import Storage

__all__ = ["open_source"]


def open_source(data: Any, storage: Storage) -> Source:
    """The source of ``RunConfig.input``; what is in memory is written beside the output first.

    Raises:
        SourceError: unknown kind, nothing there, or unreadable.
    """
    if not isinstance(data, (str, os.PathLike)):
        return spool(data, storage)
    name = os.fspath(data)
    if name.endswith(JSONL_SUFFIXES):
        return JsonlSource.find(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _of_folder(folder)
    if name.endswith(PARQUET_SUFFIXES) or any(c in name for c in "*?["):
        return ParquetSource.find(name)
    if folder.is_file():
        raise SourceError(
            f"input={name!r}: unknown suffix. Rename or convert it; "
            f"known are {', '.join(PARQUET_SUFFIXES + JSONL_SUFFIXES)}."
        )
    raise SourceError(f"input={name!r}: no such file or folder. Check the path (relative to the working folder).")


def _of_folder(folder: Path) -> Source:
    kinds = {
        kind: any(p.name.endswith(suffixes) for p in folder.rglob("*") if p.is_file())
        for kind, suffixes in ((ParquetSource, PARQUET_SUFFIXES), (JsonlSource, JSONL_SUFFIXES))
    }
    if all(kinds.values()):
        raise SourceError(f"input={str(folder)!r}: holds Parquet and JSON Lines. Name one kind by a glob.")
    return JsonlSource.find(folder) if kinds[JsonlSource] else ParquetSource.find(folder)
