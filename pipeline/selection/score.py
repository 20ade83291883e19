"""Scores, by which rows are ranked: fields of ``evidence`` by name, or an expression.

Higher is better, so entropies count negative. A field that ``evidence`` lacks is taken from ``stats``, where outputs of
schema version 1 have some of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.selection.columns import values_of
from pipeline.selection.expression import Expression

__all__ = ["SCORES", "Score"]

SCORES: Mapping[str, tuple[str, int]] = {
    "worst_logprob": ("worst_logprob", 1),
    "mean_logprob": ("mean_logprob", 1),
    "mean_entropy": ("mean_entropy", -1),
    "max_entropy": ("max_entropy", -1),
    "draft_agreement": ("draft_agreement", 1),
}
"""Name of a score -> field of ``evidence``, and its sign."""


class Score:
    """A score over the columns of a table."""

    def __init__(self, text: str, schema: pa.Schema, prefix: str) -> None:
        """Find its columns.

        Args:
            text: a name of :data:`SCORES`, or an expression.
            schema: of the tables.
            prefix: of the result columns.

        Raises:
            ConfigError: there is no such field, or the expression gives no number.
            ResourceError: DuckDB is not installed, and it is an expression.
        """
        self._path: tuple[str, ...] | None = None
        self._expression: Expression | None = None
        if text not in SCORES:
            self._expression = Expression(text, schema, "score")
            if not self._expression.is_number:
                raise ConfigError(f"score={text!r}: does not give a number. Use one of {', '.join(SCORES)}, or an SQL "
                                  "expression that does.")  # fmt: skip
            return
        name, self._sign = SCORES[text]
        for column in (f"{prefix}evidence", f"{prefix}stats"):
            if column in schema.names and schema.field(column).type.get_field_index(name) >= 0:
                self._path = (column, name)
                return
        raise ConfigError(
            f"score={text!r}: this output has no {name}, as it was begun before there was a column evidence. Use "
            "mean_logprob, or an expression over its columns."
        )

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """float64, null where there is none."""
        if self._expression is not None:
            return self._expression.values(table).cast(pa.float64())
        assert self._path is not None
        values = values_of(table, self._path)
        return pc.negate(values) if self._sign < 0 else values
