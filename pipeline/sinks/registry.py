"""The table of part formats, and the check that a format can hold a schema."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping

import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.sinks.ipc_parts import IpcFormat
from pipeline.sinks.jsonl_parts import JsonlFormat
from pipeline.sinks.parquet_parts import ParquetFormat
from pipeline.sinks.part_format import PartFormat

FORMATS: Mapping[str, PartFormat] = {
    format.name: format for format in (ParquetFormat(), IpcFormat(), JsonlFormat())
}  # fmt: skip
"""Name in ``RunConfig.output_format`` -> format."""
_MOST_LEVELS = 60
"""Units are staged in Arrow's own format, which holds rows of 63 levels (and empty tables of twice as many)."""


def check_format(name: str, schema: pa.Schema) -> None:
    """Check that the format can hold every column.

    Raises:
        ConfigError: names the columns that it cannot hold.
    """
    deep = [field.name for field in schema if _depth(field.type) > _MOST_LEVELS]
    if deep:
        raise ConfigError(f"columns {deep}: nested too deeply for any format. Flatten them, or leave them out with "
                          "columns=[...].")  # fmt: skip
    bad = [f"{field.name}: {field.type}" for field in schema if not _holds(name, field.type)]
    if bad:
        raise ConfigError(
            f"output_format={name!r}: it cannot hold columns {bad}. Use output_format='ipc', or leave them out with "
            "columns=[...]."
        )


def _depth(kind: pa.DataType) -> int:
    """Nesting depth of lists, structs and maps; stops counting above the limit."""
    level, kinds = 0, [kind]
    while kinds and level <= _MOST_LEVELS:
        kinds = [inner.field(i).type for inner in kinds for i in range(inner.num_fields)]
        level += bool(kinds)
    return level


@functools.lru_cache(1000)  # scheduled runs and stages of a chain ask for the same columns again and again
def _holds(name: str, kind: pa.DataType) -> bool:
    """Whether an empty column can be written and read back."""
    format = FORMATS[name]
    schema = pa.schema([("column", kind)])
    file = io.BytesIO()
    try:
        part = format.open(file, schema)
        part.write(schema.empty_table())
        part.close()
        list(format.tables(io.BytesIO(file.getvalue()), schema))
    except (pa.ArrowException, TypeError, OSError):  # too deep nesting is an OSError
        return False
    return True
