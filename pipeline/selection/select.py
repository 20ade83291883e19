"""A filter over one table: reads it, decides, and on the second reading tells kept rows from dropped ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.schema import output_schema
from pipeline.selection.candidates import Candidates, Reason, Verdict
from pipeline.selection.expression import Expression, find_column, values_of
from pipeline.selection.near_duplicates import NearDuplicates
from pipeline.selection.score import Score, drop_outliers
from pipeline.selection.settings import FilterConfig

_ROWS_AT_ONCE = 1024

SELECTION_TYPE = pa.struct([
    pa.field("score", pa.float64()),
    pa.field("rank", pa.int64()),
    pa.field("candidates", pa.int64()),
    pa.field("scores", pa.list_(pa.float64())),
])  # fmt: skip
"""Columns of a kept row about its choice: its score; its rank among how many candidates (null where none were ranked);
and, with ``best N per row``, the scores of all candidates of its row, from the best on."""

DROPPED_FIELDS: tuple[pa.Field, ...] = (
    pa.field("row_id", pa.string(), nullable=False),
    pa.field("sample_index", pa.int32(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("detail", pa.string()),
    pa.field("score", pa.float64()),
    pa.field("rank", pa.int64()),
    pa.field("candidates", pa.int64()),
    pa.field("duplicate_of", pa.string()),
    pa.field("duplicate_of_sample", pa.int32()),
    pa.field("similarity", pa.float64()),
)
"""Columns of the table of dropped rows."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A piece of the table, divided: rows that are kept, with their choice, and notes of those that are dropped."""

    kept: pa.Table
    dropped: pa.Table


class Selection:
    """A filter over one table; a context manager that drops its database at the end.

    Attributes:
        schema: of the rows that are kept.
        dropped_schema: of the notes of those that are dropped.
    """

    def __init__(self, config: FilterConfig, schema: pa.Schema, prefix: str = "", sampled: int = 0) -> None:
        """Check that the filter fits the table.

        Args:
            config: rules for the rows to keep.
            schema: of the table.
            prefix: of its result columns.
            sampled: how often a number of a sample was added to the id of an input row, with ``#`` before it.

        Raises:
            ConfigError: a column is not there or of another kind than is needed.
            ResourceError: a library that the filter needs is not installed.
        """
        self._config, self._rule, self._prefix, self._sampled = config, config.rule, prefix, sampled
        if config.selection_column in schema.names:
            raise ConfigError(f"selection_column={config.selection_column!r}: the output has a column of this name. "
                              'Use another one, for example "selection_2".')  # fmt: skip
        self._score = Score(config.scored_by, schema, prefix)
        self._where = None if self._rule.where is None else Expression(self._rule.where, schema, "keep")
        if self._where is not None and not self._where.is_boolean:
            raise ConfigError(f"keep={self._rule.where!r}: is not true or false. Write a condition, for example "
                              "evidence.worst_logprob > -3.")  # fmt: skip
        self._by = [find_column(schema, name.split("."), "by") for name in config.by]
        self._texts = [find_column(schema, name.split("."), "dedup.columns") for name in _text_columns(config, prefix)]
        for path in self._texts:
            _check_text(schema, path)
        self._script = (f"{prefix}evidence", "script") if config.outliers and config.outliers.script_share else None
        self._candidates = Candidates()
        self._duplicates = None
        if config.dedup is not None:
            self._duplicates = NearDuplicates(self._candidates.scratch, config.dedup)
        self.schema = schema.append(pa.field(config.selection_column, SELECTION_TYPE))
        self.dropped_schema = output_schema(
            pa.schema([]), [field.with_name(prefix + field.name) for field in DROPPED_FIELDS]
        )
        self._rows = 0

    def __enter__(self) -> Selection:
        return self

    def __exit__(self, *error: object) -> None:
        self._candidates.__exit__()

    def read(self, tables: Iterable[pa.Table]) -> None:
        """Read the rows, in order; to be called once."""
        for table in _pieces(tables):
            first = self._rows
            self._rows += table.num_rows
            self._candidates.add(self._tuples(table, first))
            if self._texts:
                self._candidates.add_texts(enumerate(self._joined(table), first))

    def decide(self) -> dict[str, int]:
        """Decide which rows to keep; returns the number of dropped rows by reason.

        Raises:
            ConfigError: the best are asked for, and no row has a score.
        """
        candidates, rule = self._candidates, self._rule
        if self._config.outliers is not None:
            drop_outliers(candidates, self._config.outliers)
        if self._ranks and candidates.count() and not candidates.count("reason IS NULL AND score IS NOT NULL"):
            raise ConfigError(
                f"score={self._config.scored_by!r}: no row has a value, so none is better than another. Strategies "
                'without the next-token head have no log-probabilities: use score="mean_entropy", or an expression.'
            )
        if rule.per_row:
            candidates.keep_best(rule, Reason.SAMPLE)
            candidates.index_groups()
        if self._duplicates is not None:
            candidates.drop_duplicates(self._duplicates.duplicates(candidates.best_first()))
        if self._ranks and not rule.per_row:
            candidates.keep_best(rule, Reason.BELOW)
        return candidates.counts()

    def divide(self, tables: Iterable[pa.Table]) -> Iterator[Chosen]:
        """The same rows once more, after :meth:`decide`, divided into pieces in their order."""
        first = 0
        for table in _pieces(tables):
            verdicts = self._candidates.verdicts(first, table.num_rows)
            first += table.num_rows
            keep = [verdict.reason is None for verdict in verdicts]
            mask = pa.array(keep, pa.bool_())
            ids = self._ids(table)
            good = [(own, verdict) for own, verdict in zip(ids, verdicts, strict=True) if verdict.reason is None]
            bad = [(own, verdict) for own, verdict in zip(ids, verdicts, strict=True) if verdict.reason is not None]
            kept = table.filter(mask).append_column(self.schema.field(len(self.schema) - 1), self._choices(good))
            yield Chosen(kept=kept, dropped=self._notes(bad))

    @property
    def _ranks(self) -> bool:
        return self._rule.share is not None or self._rule.number is not None

    def _tuples(self, table: pa.Table, first: int) -> Iterator[tuple[Any, ...]]:
        ids, prefix = self._ids(table), self._prefix
        failed = pc.equal(table[f"{prefix}finish_reason"], "error").to_pylist()
        holds = [True] * table.num_rows if self._where is None else self._where.values(table).to_pylist()
        scores = self._score.values(table).to_pylist()
        lengths = table[f"{prefix}completion_tokens"].to_pylist()
        scripts = [None] * table.num_rows if self._script is None else values_of(table, self._script).to_pylist()
        groups = zip(*(values_of(table, path).to_pylist() for path in self._by), strict=True) if self._by else None
        for i, (row_id, sample) in enumerate(ids):
            reason = detail = None
            if failed[i]:
                reason = Reason.FAILED
            elif not holds[i]:
                reason, detail = Reason.CONDITION, "false" if holds[i] is False else "no value"
            group = self._input_row(row_id) if self._rule.per_row else ""
            group = json.dumps(next(groups), default=str) if groups is not None else group
            yield first + i, row_id, sample, group, scores[i], lengths[i], scripts[i], reason, detail

    def _input_row(self, row_id: str) -> str:
        """The id of the input row that a row is a sample of, or was made of."""
        return row_id.rsplit("#", self._sampled)[0] if self._sampled else row_id

    def _ids(self, table: pa.Table) -> list[tuple[str, int]]:
        columns = (table[f"{self._prefix}{name}"].to_pylist() for name in ("row_id", "sample_index"))
        return list(zip(*columns, strict=True))

    def _joined(self, table: pa.Table) -> Iterator[str]:
        columns = [values_of(table, path).to_pylist() for path in self._texts]
        return ("\n".join(value or "" for value in values) for values in zip(*columns, strict=True))

    def _choices(self, rows: Sequence[tuple[tuple[str, int], Verdict]]) -> pa.Array:
        per_row = self._rule.per_row
        scores = self._candidates.scores_of(list({self._input_row(own[0]) for own, _ in rows})) if per_row else {}
        values = [
            {
                "score": verdict.score,
                "rank": verdict.rank,
                "candidates": verdict.candidates,
                "scores": scores.get(self._input_row(own[0])),
            }
            for own, verdict in rows
        ]
        return pa.array(values, SELECTION_TYPE)

    def _notes(self, rows: Sequence[tuple[tuple[str, int], Verdict]]) -> pa.Table:
        own = [None if verdict.duplicate_of is None else verdict.duplicate_of for _, verdict in rows]
        columns: list[list[Any]] = [
            [row_id for (row_id, _), _ in rows],
            [sample for (_, sample), _ in rows],
            *([getattr(verdict, name) for _, verdict in rows] for name in
              ("reason", "detail", "score", "rank", "candidates")),
            [None if other is None else other[0] for other in own],
            [None if other is None else other[1] for other in own],
            [verdict.similarity for _, verdict in rows],
        ]  # fmt: skip
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.dropped_schema, strict=True)]
        return pa.table(arrays, schema=self.dropped_schema)


def _pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        for first in range(0, table.num_rows, _ROWS_AT_ONCE):
            yield table.slice(first, _ROWS_AT_ONCE)


def _text_columns(config: FilterConfig, prefix: str) -> Sequence[str]:
    if config.dedup is None:
        return ()
    return [f"{prefix}text"] if config.dedup.columns == ("text",) else config.dedup.columns


def _check_text(schema: pa.Schema, path: tuple[str, ...]) -> None:
    kind = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ConfigError(f"dedup.columns={'.'.join(path)!r}: a column of {kind}, and words are looked for in text. "
                          "Name columns of text.")  # fmt: skip
