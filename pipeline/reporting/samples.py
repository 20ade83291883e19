"""Sampled rows: those whose ids have the lowest hashes, so which they are depends on the rows alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason

__all__ = ["SampledRow", "lowest", "lowest_hash", "lowest_rows", "row_hashes", "sampled_rows"]

_CELL_CHARACTERS = 1500
_TEXT_CHARACTERS = 6000
_COLUMNS = 12
"""Input columns that a sampled row shows."""
_STATS = ("decode_forwards", "rows_forwarded", "tokens_per_forward", "prefix_cacheability", "mean_entropy",
          "max_entropy", "mean_logprob", "draft_agreement", "out_of_order_fills", "window_mean")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SampledRow:
    """An output row, as a report shows it: texts are cut.

    Attributes:
        hash: see :func:`row_hashes`.
        row_id, sample_index, text, error, finish_reason, strategy, prompt_tokens, completion_tokens: its columns.
        inputs: its input columns as text.
        cut: whether ``text`` is longer in the output.
        stats: some of its statistics.
    """

    hash: int
    row_id: str
    sample_index: int
    finish_reason: str
    text: str | None = None
    error: str | None = None
    strategy: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    stats: Mapping[str, float | None] = field(default_factory=dict)


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


def sampled_rows(
    table: pa.Table, where: Sequence[int], hashes: np.ndarray, inputs: int, prefix: str
) -> list[SampledRow]:
    """The rows of these numbers.

    Args:
        table: output rows.
        where: row numbers.
        hashes: of all rows of ``table``.
        inputs: number of its columns that are the input's; these come first.
        prefix: prefix of the names of the others.
    """
    return [_row({name: table[name][i] for name in table.column_names}, int(hashes[i]), inputs, prefix) for i in where]


def lowest(rows: Iterable[SampledRow], most: int) -> tuple[SampledRow, ...]:
    """The rows with the lowest hashes, from the lowest on."""
    return tuple(sorted(rows, key=lambda row: (row.hash, row.row_id, row.sample_index))[:most])


def _row(cells: Mapping[str, pa.Scalar], hash: int, inputs: int, prefix: str) -> SampledRow:
    def cell(name: str) -> Any:
        found = cells.get(prefix + name)
        return None if found is None else found.as_py()

    text, error, stats = cell("text"), cell("error"), cell("stats") or {}
    return SampledRow(
        hash=hash,
        row_id=cell("row_id"),
        sample_index=cell("sample_index"),
        finish_reason=cell("finish_reason"),
        text=None if text is None else text[:_TEXT_CHARACTERS],
        cut=text is not None and len(text) > _TEXT_CHARACTERS,
        error=None if error is None else _shortened(error, _CELL_CHARACTERS),
        strategy=cell("strategy"),
        prompt_tokens=cell("prompt_tokens"),
        completion_tokens=cell("completion_tokens"),
        inputs={name: _plain(cells[name]) for name in list(cells)[: min(inputs, _COLUMNS)]},
        stats={name: stats.get(name) for name in _STATS},
    )


def _plain(cell: pa.Scalar) -> str:
    """A cell as text for people."""
    try:
        value = cell.as_py()
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        text.encode()  # half a surrogate pair cannot be written to a file
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return "(not text)"
    return _shortened(text, _CELL_CHARACTERS)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
