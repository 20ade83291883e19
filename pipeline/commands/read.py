"""``read``: the published tables of an output, in input order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from pipeline import layout
from pipeline.cluster.ray_dataset import ray_dataset
from pipeline.commit.manifest import Manifest
from pipeline.commit.published_parts import published_dead_letters, published_rows
from pipeline.errors import OutputError
from pipeline.storage.open import open_storage

if TYPE_CHECKING:
    from pipeline.cluster.ray_dataset import Dataset

__all__ = ["read"]


@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters"] = ...,
    format: Literal["ray"] = "ray",
    storage_options: Mapping[str, Any] | None = ...,
) -> Dataset: ...
@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters"] = ...,
    format: Literal["arrow"],
    storage_options: Mapping[str, Any] | None = ...,
) -> pa.Table: ...
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters"] = "rows",
    format: Literal["ray", "arrow"] = "ray",
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """The published table of an output, in input order: all of each publication or nothing of it.

    Args:
        output: the folder or URL of a run.
        table: "rows", the generations; or "dead_letters", the input rows that failed, with their reasons.
        format: "ray" gives a lazy ``ray.data.Dataset`` (starting Ray on loopback where none runs); "arrow" a
            ``pyarrow.Table`` in memory, with exactly the Arrow types of the input's columns.
        storage_options: keyword arguments of the URL's file system.

    Raises:
        OutputError: nothing is published there.
    """
    storage = open_storage(output, layout.SCRATCH, storage_options)
    manifest = Manifest.load(storage)
    if not manifest.publications:
        state = "a run was begun but not finished: run it again to continue" if storage.exists(layout.RUN) else "no run"
        raise OutputError(f"{storage.url}: nothing is published there ({state}).")
    first = manifest.publications[0]
    schema = first.schema if table == "rows" else first.dead_schema
    parts_of = published_rows if table == "rows" else published_dead_letters
    parts = [part for publication in manifest.publications for part in parts_of(storage, publication)]
    if format == "arrow":
        return pa.concat_tables([schema.empty_table(), *(piece for part in parts for piece in part.tables())])
    return ray_dataset(parts, schema, storage_options or {})
