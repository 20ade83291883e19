"""A table of an output, read from its files when it is used; needs no Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.cluster.ray_dataset import ray_dataset
from pipeline.cluster.resources import is_private
from pipeline.commands.exact_frame import exact_frame
from pipeline.commit.published_parts import PublishedPart
from pipeline.errors import OutputError, ResourceError
from pipeline.sinks.dataset_card import json_schema
from pipeline.sinks.jsonl_parts import JsonlFormat
from pipeline.sources.hub import features_of

if TYPE_CHECKING:
    import pandas

    from pipeline.cluster.ray_dataset import Dataset

__all__ = ["OutputTable"]

_ROWS_AT_ONCE = 1024
"""Rows that are Python objects at the same time while a table is iterated over."""


@dataclass(frozen=True, kw_only=True)
class OutputTable:
    """The rows or the dead letters of an output, in input order.

    Iterating gives one mapping for each row, a bounded number of rows in memory at a time.

    Attributes:
        schema: columns with exactly their Arrow types.
        tables: reads the rows anew, as Arrow tables of bounded size.
        parts: the published files; None if rows are read that are not published.
        storage_options: keyword arguments of the output's file system.
    """

    schema: pa.Schema
    tables: Callable[[], Iterator[pa.Table]] = field(repr=False)
    parts: Sequence[PublishedPart] | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.concat_tables([self.schema.empty_table(), *self.tables()])

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas frame, with exactly their values.

        Integer columns with nulls, such as counts and seeds where rows failed, have pandas' nullable integer types.
        Integers with nulls inside of lists are Python objects.
        """
        return exact_frame(self.to_arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for table in self.tables():
            for first in range(0, table.num_rows, _ROWS_AT_ONCE):
                yield from table.slice(first, _ROWS_AT_ONCE).to_pylist()

    @property
    def features(self) -> Any:
        """The columns' types, as ``datasets.load_dataset("json", data_files=..., features=...)`` takes them."""
        is_json = any(part.format == JsonlFormat.name for part in self.parts or ())
        return features_of(json_schema(self.schema) if is_json else self.schema)

    @property
    def dataset(self) -> Dataset:
        """A lazy Ray dataset over the published files, in the Ray session that there is.

        Raises:
            ResourceError: there is none; none is started for reading.
            OutputError: rows that are not published.
        """
        if self.parts is None:
            raise OutputError("committed rows that are not published have no Ray dataset. Use to_arrow(), to_pandas() "
                              "or iterate over them.")  # fmt: skip
        if is_private():
            raise ResourceError(
                "dataset: a Ray dataset needs a Ray session, and none runs here. Use to_pandas(), to_arrow() or "
                "iterate over the rows, which need none; or call ray.init() first."
            )
        return ray_dataset(self.parts, self.schema, self.storage_options)
