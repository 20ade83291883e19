"""Scores, by which rows are ranked: fields of ``evidence`` by name, or an expression.

Higher is better, so entropies count negative. A field that ``evidence`` lacks is taken from ``stats``, where outputs of
schema version 1 have some of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.selection.columns import values_of
from pipeline.selection.expression import Expression

__all__ = ["SCORES", "Score"]

SCORES: Mapping[str, Mapping[str, float]] = {
    "confidence": {"worst_logprob": 1.0, "mean_logprob": 10.0},
    "worst_logprob": {"worst_logprob": 1.0},
    "mean_logprob": {"mean_logprob": 1.0},
    "mean_entropy": {"mean_entropy": -1.0},
    "max_entropy": {"max_entropy": -1.0},
    "draft_agreement": {"draft_agreement": 1.0},
}
"""Name of a score -> fields of ``evidence`` that are added up, each with its weight. A row's mean log-probability is of
the order of a tenth of its worst, so the two count alike in ``confidence``."""


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
        self._terms: list[tuple[tuple[str, ...], float]] = []
        self._expression: Expression | None = None
        if text not in SCORES:
            self._expression = Expression(text, schema, "score")
            if not self._expression.is_number:
                raise ConfigError(f"score={text!r}: does not give a number. Use one of {', '.join(SCORES)}, or an SQL "
                                  "expression that does.")  # fmt: skip
            return
        for name, weight in SCORES[text].items():
            self._terms.append((_field(text, name, schema, prefix), weight))

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """float64, null where there is none."""
        if self._expression is not None:
            return self._expression.values(table).cast(pa.float64())
        terms = [pc.multiply(values_of(table, path), weight) for path, weight in self._terms]
        return functools.reduce(pc.add, terms)


def _field(score: str, name: str, schema: pa.Schema, prefix: str) -> tuple[str, ...]:
    for column in (f"{prefix}evidence", f"{prefix}stats"):
        if column in schema.names and schema.field(column).type.get_field_index(name) >= 0:
            return column, name
    raise ConfigError(
        f"score={score!r}: this output has no {name}, as it was begun before there was a column evidence. Use "
        'score="mean_logprob", or an expression over its columns.'
    )
