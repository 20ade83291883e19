"""Merges the schemas of many files into one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.base import HIDDEN

__all__ = ["common_schema"]


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns of all schemas, hidden ones left out; metadata of the first.

    Raises:
        SourceError: they contradict each other.
    """
    try:
        whole = pa.unify_schemas(list(schemas))
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(f"the input's files disagree on column types ({error}). Cast them to one type.") from error
    visible = [field for field in whole if field.name not in HIDDEN]
    return pa.schema(visible, metadata=schemas[0].metadata)
