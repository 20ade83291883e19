"""A Ray dataset over published part files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.cluster.session import ensure_ray
from pipeline.commit.committed_rows import PublishedPart
from pipeline.storage.urls import is_url, open_filesystem

if TYPE_CHECKING:
    from ray.data import Dataset


def ray_dataset(parts: Sequence[PublishedPart], schema: pa.Schema, options: Mapping[str, Any]) -> Dataset:
    """A lazy dataset over published files, in their order, in the session that :func:`ensure_ray` finds.

    ``options``: keyword arguments of their file system.
    """
    ensure_ray()
    import ray
    from ray.data import DataContext

    if not parts:
        return ray.data.from_arrow(schema.empty_table())
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    with DataContext.current(context):
        if all(part.format == "parquet" and not part.lacks for part in parts):
            paths = [part.path for part in parts]
            fs = open_filesystem(paths[0], options)[0] if is_url(paths[0]) else None
            return ray.data.read_parquet(paths, filesystem=fs)
        numbers = [pa.table({"part": [i]}) for i in range(len(parts))]
        read_parts: Any = _read_parts  # takes and gives Arrow tables only, which Ray's types cannot say
        return ray.data.from_arrow(numbers).map_batches(
            read_parts, batch_size=None, batch_format="pyarrow", fn_kwargs={"parts": parts}
        )


def _read_parts(block: pa.Table, parts: Sequence[PublishedPart]) -> Iterator[pa.Table]:
    for number in block["part"].to_pylist():
        yield from parts[number].tables()
