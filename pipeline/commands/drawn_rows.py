"""Rows of an output that are drawn at random, and collected while it is read."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, OutputError
from pipeline.types import Unit


@dataclass(frozen=True, kw_only=True)
class DrawnRow:
    """An input row, a unit of it alone, and the output rows (samples) that it has.

    Attributes:
        is_good: it did not fail, and no retry with other settings did it.
    """

    source: pa.Table
    unit: Unit
    output: pa.Table
    is_good: bool


class Drawn:
    """Input rows that are drawn by their places in the order of the output, and collected as it is read.

    Args:
        places: of the rows, from 0.
    """

    def __init__(self, places: Collection[int]) -> None:
        self.rows: list[DrawnRow] = []
        self._places, self._passed = places, 0

    def collect(self, planned: Unit, source_rows: pa.Table, table: pa.Table, prefix: str) -> None:
        """Pass a unit, and keep those of its rows that were drawn."""
        begin, self._passed = self._passed, self._passed + planned.num_rows
        starts = np.flatnonzero(table[f"{prefix}sample_index"].to_numpy() == 0)
        ends = [*starts[1:], table.num_rows]
        row = 0
        for piece in planned.slices:
            for inside in range(piece.num_rows):
                if begin + row in self._places and row < len(starts):
                    output = table.slice(starts[row], ends[row] - starts[row])
                    retried = output[f"{prefix}retry"].null_count < output.num_rows
                    self.rows.append(
                        DrawnRow(
                            source=source_rows.slice(row, 1),
                            unit=replace(
                                planned, rows=replace(piece, first_row=piece.first_row + inside, num_rows=1), more=()
                            ),
                            output=output,
                            is_good=not retried and output[f"{prefix}finish_reason"][0].as_py() != "error",
                        )
                    )
                row += 1


def drawn_rows(state: RunState, rows: int) -> Drawn:
    """Draw rows of an output; the verification collects them as it passes.

    Raises:
        ConfigError: fewer than one.
        OutputError: a run does not generate the rows of this output from an input.
    """
    if rows < 1:
        raise ConfigError(f"regenerate={rows}: at least 1. Ask for 200.")
    if state.derived is not None:
        raise OutputError(f"a filter made it of {state.derived.source}: regenerate rows of that output.")
    return Drawn(frozenset(random.SystemRandom().sample(range(state.rows), min(rows, state.rows))))
