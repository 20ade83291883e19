"""Counts prompts that are blank, or identical to another: signs of empty cells in the input."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.prompts.tokenize import BLANK, PROMPT_IDS
from pipeline.types import PROMPT_COUNTS

__all__ = ["prompt_counts"]


def prompt_counts(table: pa.Table) -> dict[str, Any]:
    """Count over the rows of a table of :func:`~pipeline.prompts.tokenize.prepare_table`, by the names of the counts.

    Of several identical prompts, all but the first count. A prompt is blank if its row puts no visible character into
    it; a chat template around it does not matter. Rows that failed have no prompt.
    """
    seen: set[bytes] = set()
    prompts = 0
    for chunk in table[PROMPT_IDS].chunks:
        ids, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        for (first, end), there in zip(itertools.pairwise(offsets.tolist()), chunk.is_valid().to_pylist(), strict=True):
            prompts += there
            if there:
                seen.add(ids[first:end].tobytes())
    blank = pc.sum(table[BLANK]).as_py() or 0 if BLANK in table.column_names else 0
    return dict(zip(PROMPT_COUNTS, (blank, prompts - len(seen)), strict=True))
