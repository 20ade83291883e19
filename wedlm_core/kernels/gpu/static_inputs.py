"""Bring a forward's input to the buffers that captured forwards read: one Triton kernel instead of eight copies.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


# Aligned in some forwards alone: were it specialised, it would be compiled again while a job runs.
@triton.jit(
    do_not_specialize=["size", "sequences", "room", "columns_in", "columns_out"],
    do_not_specialize_on_alignment=["position_in", "length_in"],
)
def fill_inputs(  # type: ignore[no-untyped-def]
    id_in,
    position_in,
    entry_in,
    edge_in,
    length_in,
    page_in,
    id_out,
    position_out,
    entry_out,
    edge_out,
    length_out,
    page_out,
    size,
    sequences,
    room,
    columns_in,
    columns_out,
    BLOCK: tl.constexpr,
):
    """Program (BLOCK rows, BLOCK sequences, and the page table of one): sequences after the last get no rows.

    Args:
        id_in: int64 ``[size]``.
        position_in: likewise.
        entry_in: likewise.
        edge_in: int32 ``[sequences + 1]``, edges of the sequences' rows.
        length_in: int32 ``[sequences]``.
        page_in: int32 ``[sequences, columns_in]``.
        id_out: int64 ``[size]`` at least, written; so the others.
        position_out: see above.
        entry_out: see above.
        edge_out: int32 ``[room + 1]``; after the last sequence its edge stands again.
        length_out: int32 ``[room]``; after the last sequence 0.
        page_out: int32 ``[room, columns_out]``; other inputs stay.
        size: rows.
        sequences: of the forward.
        room: sequences at most.
        columns_in: pages of a sequence that are given.
        columns_out: pages of a sequence at most.
        BLOCK: rows of a program.
    """
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    real = at < size
    tl.store(id_out + at, tl.load(id_in + at, mask=real), mask=real)
    tl.store(position_out + at, tl.load(position_in + at, mask=real), mask=real)
    tl.store(entry_out + at, tl.load(entry_in + at, mask=real), mask=real)
    tl.store(edge_out + at, tl.load(edge_in + tl.minimum(at, sequences)), mask=at <= room)
    tl.store(length_out + at, tl.load(length_in + at, mask=at < sequences, other=0), mask=at < room)
    if program < sequences:
        for column in range(0, columns_in, BLOCK):
            page = column + tl.arange(0, BLOCK)
            given = page < columns_in
            entry = tl.load(page_in + program.to(tl.int64) * columns_in + page, mask=given)
            tl.store(page_out + program.to(tl.int64) * columns_out + page, entry, mask=given)
