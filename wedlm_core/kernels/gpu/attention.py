"""Causal attention of packed rows over paged keys and values, as Triton kernels.

A program computes a tile of a sequence's rows for one KV head and all query heads that share it, so that each key is
read once per group. It reads the sequence's KV in blocks of fixed size from index 0, with an online softmax (Dao et
al., FlashAttention-2, arXiv 2307.08691, section 3.1). If there are few tiles, the KV of a sequence is cut into ranges
for different programs, and a second kernel joins their results (split KV, as in "Flash-Decoding").

Tiles are numbered without the host: sequence s begins at tile ``cu_rows[s] // rows_per_tile + s``. That leaves enough
tiles for each sequence. A program whose tile has no rows returns at once. Padding rows are written as zeros.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_tiles", "join_splits"]


@triton.jit
def _place(cu_rows, sequences, unit, unit_rows: tl.constexpr, SEQ_P: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sequence of a tile of rows (``sequences`` means padding), and the tile's number within it."""
    index = tl.arange(0, SEQ_P)
    first_unit = tl.load(cu_rows + index, mask=index <= sequences, other=0) // unit_rows + index
    sequence = tl.sum(((first_unit <= unit) & (index <= sequences)).to(tl.int32)) - 1
    return sequence, unit - (tl.load(cu_rows + sequence) // unit_rows + sequence)


@triton.jit
def _fetch(base, entry, place, real, MASKED: tl.constexpr, DIM: tl.constexpr, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load ``[N, Dh]`` from the pool at ``entry [N]``; 8-bit floats are converted to float32."""
    target = base + entry[:, None] * DIM + place[None, :]
    entries = tl.load(target, mask=real, other=0) if MASKED else tl.load(target)
    if FP8:
        entries = entries.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return entries


@triton.jit
def _block(  # type: ignore[no-untyped-def]
    acc,
    top,
    total,
    query,
    limit,
    k_head,
    v_head,
    pages,
    page,
    begin,
    kv_length,
    place,
    scale,
    MASKED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
):
    """Update the running maximum, sum and context of each row with one block of keys and values."""
    key = begin + tl.arange(0, BLOCK_N)
    if PAGE % BLOCK_N == 0:  # a block is within one page
        entry = page.to(tl.int64) * PAGE + begin % PAGE + tl.arange(0, BLOCK_N)
    else:
        entry = tl.load(pages + key // PAGE, mask=key < kv_length, other=0).to(tl.int64) * PAGE + key % PAGE
    real = (key < kv_length)[:, None] & (place < DIM)[None, :]
    CHECKED: tl.constexpr = MASKED or DIM != DIM_P
    keys = _fetch(k_head, entry, place, real, CHECKED, DIM, FP8).to(query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if MASKED:
        scores = tl.where(key[None, :] <= limit[:, None], scores, float("-inf"))
    best = tl.maximum(top, tl.max(scores, axis=1))
    shift = best
    if MASKED:  # a row that has seen no key yet: exp2(-inf - 0) = 0, never exp2(-inf + inf)
        shift = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(top - shift)
    values = _fetch(v_head, entry, place, real, CHECKED, DIM, FP8).to(query.dtype)
    acc = tl.dot(weights.to(query.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return acc, best, total * shrink + tl.sum(weights, axis=1)


@triton.jit(do_not_specialize=["sequences", "total_rows", "splits", "pages_stride"])
def attend_tiles(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    parts,
    tops,
    totals,
    cu_rows,
    kv_lengths,
    pages,
    scale,
    v_scale,
    sequences,
    total_rows,
    splits,
    pages_stride,
    q_row_stride,
    q_head_stride,
    num_entries,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_P: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEQ_P: tl.constexpr,
    SPLIT: tl.constexpr,
    SKIP_MASK: tl.constexpr,
    FP8: tl.constexpr,
):
    """Grid (tiles, KV heads, splits).

    ``q [T', H, Dh]`` -> ``out`` of the same shape (contiguous), or with SPLIT to ``parts [T', H, splits, Dh]``,
    ``tops`` and ``totals [T', H, splits]`` (float32: unnormalised context, maximum and sum). ``scale`` is the
    softmax's times log2(e) times the key scale. SKIP_MASK omits the mask for blocks that
    the whole tile attends to.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, number = _place(cu_rows, sequences, tile, BLOCK_Q, SEQ_P)
    row_begin = tl.load(cu_rows + sequence)
    first = number * BLOCK_Q
    member = tl.arange(0, BLOCK_Q * GROUP_P)
    row = first + member // GROUP_P
    head = kv_head * GROUP + member % GROUP_P
    place = tl.arange(0, DIM_P)
    is_head = member % GROUP_P < GROUP
    row_at = (row_begin + row).to(tl.int64)
    out_at = (row_at * HEADS + head)[:, None] * DIM + place[None, :]
    if sequence >= sequences:
        if split == 0:
            padding = (row_begin + row < total_rows) & is_head
            nothing = tl.zeros((BLOCK_Q * GROUP_P, DIM_P), dtype=out.dtype.element_ty)
            tl.store(out + out_at, nothing, mask=padding[:, None] & (place < DIM)[None, :])
        return
    count = tl.load(cu_rows + sequence + 1) - row_begin
    if first >= count:
        return
    kv_length = tl.load(kv_lengths + sequence)
    cached = kv_length - count
    begin = 0
    end = tl.minimum(kv_length, cached + first + BLOCK_Q)
    if SPLIT:
        share = tl.cdiv(tl.cdiv(kv_length, splits), BLOCK_N) * BLOCK_N
        begin = split * share
        end = tl.minimum(end, begin + share)
        if begin >= end:
            return

    real = (row < count) & is_head
    inside = real[:, None] & (place < DIM)[None, :]
    query = tl.load(
        q + (row_at * q_row_stride + head * q_head_stride)[:, None] + place[None, :], mask=inside, other=0.0
    )
    limit = cached + row
    head_base = kv_head.to(tl.int64) * num_entries * DIM
    page_row = pages + sequence.to(tl.int64) * pages_stride
    acc = tl.zeros((BLOCK_Q * GROUP_P, DIM_P), dtype=tl.float32)
    top = tl.full((BLOCK_Q * GROUP_P,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q * GROUP_P,), dtype=tl.float32)
    whole = begin
    # If a block is within one page, read the page of the next block ahead: otherwise the addresses of its keys would
    # be unknown until this block is done, and its loads could not start early.
    page = tl.load(page_row + begin // PAGE)
    if SKIP_MASK:  # blocks that the tile's first row attends to completely
        whole = tl.maximum(begin, tl.minimum(end, (cached + first + 1) // BLOCK_N * BLOCK_N))
        for at in range(begin, whole, BLOCK_N):
            following = tl.load(page_row + tl.minimum(at + BLOCK_N, end - 1) // PAGE)
            acc, top, total = _block(
                acc, top, total, query, limit, k + head_base, v + head_base, page_row, page, at, kv_length, place,
                scale, False, DIM, DIM_P, PAGE, BLOCK_N, FP8,
            )  # fmt: skip
            page = following
    for at in range(whole, end, BLOCK_N):
        following = tl.load(page_row + tl.minimum(at + BLOCK_N, end - 1) // PAGE)
        acc, top, total = _block(
            acc, top, total, query, limit, k + head_base, v + head_base, page_row, page, at, kv_length, place,
            scale, True, DIM, DIM_P, PAGE, BLOCK_N, FP8,
        )  # fmt: skip
        page = following

    if SPLIT:
        part_at = (row_at * HEADS + head) * splits + split
        tl.store(parts + part_at[:, None] * DIM + place[None, :], acc, mask=inside)
        tl.store(tops + part_at, top, mask=real)
        tl.store(totals + part_at, total, mask=real)
    else:
        context = acc / total[:, None] * v_scale
        tl.store(out + out_at, context.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["sequences", "splits"])
def join_splits(  # type: ignore[no-untyped-def]
    parts,
    tops,
    totals,
    out,
    cu_rows,
    kv_lengths,
    v_scale,
    sequences,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEQ_P: tl.constexpr,
):
    """Grid (rows, query heads): join the results of a row's KV ranges, in ascending order."""
    row, head = tl.program_id(0), tl.program_id(1)
    index = tl.arange(0, SEQ_P)
    ends = tl.load(cu_rows + 1 + index, mask=index < sequences, other=2147483647)
    sequence = tl.sum((ends <= row).to(tl.int32))
    if sequence >= sequences:
        return  # padding: attend_tiles has written it
    kv_length = tl.load(kv_lengths + sequence)
    limit = kv_length - tl.load(cu_rows + sequence + 1) + row
    share = tl.cdiv(tl.cdiv(kv_length, splits), BLOCK_N) * BLOCK_N
    place = tl.arange(0, DIM_P)
    at = row.to(tl.int64) * HEADS + head
    acc = tl.load(parts + at * splits * DIM + place, mask=place < DIM, other=0.0)
    top, total = tl.load(tops + at * splits), tl.load(totals + at * splits)  # the first range always has a key
    for split in range(1, limit // share + 1):
        part_top = tl.load(tops + at * splits + split)
        best = tl.maximum(top, part_top)
        shrink, weight = tl.exp2(top - best), tl.exp2(part_top - best)
        part = tl.load(parts + (at * splits + split) * DIM + place, mask=place < DIM, other=0.0)
        acc = acc * shrink + part * weight
        total = total * shrink + tl.load(totals + at * splits + split) * weight
        top = best
    tl.store(out + at * DIM + place, (acc / total * v_scale).to(out.dtype.element_ty), mask=place < DIM)
