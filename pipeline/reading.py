"""Reading an output back: what is published, in input order."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from pipeline import layout
from pipeline.cluster import ensure_ray
from pipeline.damage import Damage
from pipeline.errors import DamagedError, OutputError
from pipeline.filesystem import is_url, join, open_filesystem
from pipeline.publications import Manifest, Publication
from pipeline.repairing import describe_damage
from pipeline.sinks import FORMATS
from pipeline.storage import Storage, open_storage

if TYPE_CHECKING:
    import ray.data

__all__ = ["read"]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A published file. Picklable."""

    storage: Storage
    key: str
    format: str
    schema: pa.Schema

    @property
    def path(self) -> str:
        return join(self.storage.url, self.key)

    def tables(self) -> Iterator[pa.Table]:
        """Its rows, piece by piece."""
        try:
            with self.storage.open(self.key) as file:
                yield from FORMATS[self.format].tables(file, self.schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EIO):
                raise  # the store's trouble
            fault = "missing" if isinstance(error, FileNotFoundError) else f"not as it was published ({error})"
            raise DamagedError(describe_damage(self.storage.url, [Damage(key=self.key, fault=fault)])) from error


@overload
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters"] = ...,
    format: Literal["ray"] = "ray",
    storage_options: Mapping[str, Any] | None = ...,
) -> ray.data.Dataset: ...
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
    parts = [part for p in manifest.publications for part in (_rows if table == "rows" else _dead_letters)(storage, p)]
    if format == "arrow":
        return pa.concat_tables([schema.empty_table(), *(piece for part in parts for piece in part.tables())])
    return _ray_dataset(parts, schema, storage_options or {})


def _rows(storage: Storage, publication: Publication) -> list[_Part]:
    return [
        _Part(
            storage=storage,
            key=f"{publication.name}/{part.name}",
            format=publication.format,
            schema=publication.schema,
        )
        for part in publication.parts
    ]


def _dead_letters(storage: Storage, publication: Publication) -> list[_Part]:
    if publication.dead_letters is None:
        return []
    key = layout.published_dead_letters(publication.dead_letters.name)
    return [_Part(storage=storage, key=key, format=publication.format, schema=publication.dead_schema)]


def _ray_dataset(parts: Sequence[_Part], schema: pa.Schema, options: Mapping[str, Any]) -> Any:
    ensure_ray()
    import ray
    from ray.data import DataContext

    if not parts:
        return ray.data.from_arrow(schema.empty_table())
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    with DataContext.current(context):
        if all(part.format == "parquet" for part in parts):
            paths = [part.path for part in parts]
            fs = open_filesystem(paths[0], options)[0] if is_url(paths[0]) else None
            return ray.data.read_parquet(paths, filesystem=fs)
        numbers = [pa.table({"part": [i]}) for i in range(len(parts))]
        read_parts: Any = _read_parts  # takes and gives Arrow tables only, which Ray's types cannot say
        return ray.data.from_arrow(numbers).map_batches(
            read_parts, batch_size=None, batch_format="pyarrow", fn_kwargs={"parts": parts}
        )


def _read_parts(block: pa.Table, parts: Sequence[_Part]) -> Iterator[pa.Table]:
    for number in block["part"].to_pylist():
        yield from parts[number].tables()
