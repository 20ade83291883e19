"""Sampled rows: those whose ids have the lowest hashes, so which they are depends on the rows alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason


def row_hashes(row_ids: Iterable[str], sample_indexes: Iterable[int]) -> np.ndarray:
    """For each output row a number in [0, 2**63) that follows from its id and its sample's number alone; int64."""
    made = (
        hashlib.blake2b(f"{row_id}\x1f{index}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for row_id, index in zip(row_ids, sample_indexes, strict=True)
    )
    return (np.frombuffer(b"".join(made), dtype=">u8") >> np.uint64(1)).astype(np.int64)


def lowest_hash(table: pa.Table, prefix: str = "") -> int | None:
    """The lowest hash of the output rows that are no failures; None if there are none."""
    hashes = row_hashes(table[f"{prefix}row_id"].to_pylist(), table[f"{prefix}sample_index"].to_pylist())
    kept = hashes[_succeeded(table, prefix)]
    return int(kept.min()) if len(kept) else None


def lowest_rows(tables: Iterable[pa.Table], most: int, prefix: str = "") -> pa.Table | None:
    """The output rows with the lowest hashes that are no failures, from the lowest on; None if there are none."""
    found: pa.Table | None = None
    for table in tables:
        kept = table.filter(pa.array(_succeeded(table, prefix)))
        both = kept if found is None else pa.concat_tables([found, kept])
        hashes = row_hashes(both[f"{prefix}row_id"].to_pylist(), both[f"{prefix}sample_index"].to_pylist())
        found = both.take(pa.array(np.argsort(hashes, kind="stable")[:most]))
    return found if found is not None and found.num_rows else None


def _succeeded(table: pa.Table, prefix: str) -> np.ndarray:
    return np.asarray(pc.not_equal(table[f"{prefix}finish_reason"], FinishReason.ERROR.value))
