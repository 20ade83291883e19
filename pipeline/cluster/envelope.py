"""An envelope: a Ray block of one row that holds a unit's whole table as Arrow IPC bytes.

Ray may split, merge and convert blocks. It cannot do that to an envelope: a unit stays whole, and the user's columns
keep their exact Arrow types.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["open_table", "pack", "seal", "unpack"]


def seal(table: pa.Table) -> pa.Buffer:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def open_table(data: pa.Buffer | bytes) -> pa.Table:
    """Inverse of :func:`seal`; zero-copy."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def pack(table: pa.Table) -> pa.Table:
    """A block of one row that holds ``table``."""
    payload = pa.Array.from_buffers(pa.large_binary(), 1, _binary_buffers(seal(table)))
    return pa.table({"payload": payload})


def _binary_buffers(data: pa.Buffer) -> list[pa.Buffer | None]:
    offsets = pa.array([0, data.size], pa.int64()).buffers()[1]
    return [None, offsets, data]


def unpack(block: pa.Table) -> pa.Table:
    """Inverse of :func:`pack`."""
    if block.num_rows != 1:
        raise AssertionError(f"an envelope holds one unit, got a block of {block.num_rows} rows")
    return open_table(block["payload"][0].as_buffer())
