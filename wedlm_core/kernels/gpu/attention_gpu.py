"""Causal attention of packed rows over paged keys and values, as Triton kernels.

A program computes a tile of a sequence's rows for one KV head and all query heads that share it, so that each key is
read once per group. It reads the sequence's KV in blocks of fixed size from index 0, with an online softmax (Dao et
al., FlashAttention-2, arXiv 2307.08691, section 3.1). If there are few tiles, the KV of a sequence is cut into ranges
for different programs, and a second kernel joins their results (split KV, as in "Flash-Decoding").

Tiles are numbered without the host: sequence s begins at tile ``cu_rows[s] // rows_per_tile + s``. That leaves enough
tiles for each sequence. A first kernel, once per forward, writes a record of each tile, so that the programs of a
layer start with one load and not with a search. A program whose tile has no rows returns at once. Padding rows are
written as zeros.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wedlm_core.kernels.gpu.dependent_launch import wait_for_inputs


@triton.jit(
    do_not_specialize=["sequences", "total_rows", "least", "most"], do_not_specialize_on_alignment=["kv_lengths"]
)
def place_tiles(  # type: ignore[no-untyped-def]
    cu_rows, kv_lengths, places, sequences, total_rows, least, most, BLOCK_Q: tl.constexpr, CHUNK: tl.constexpr
):
    """Grid (sequences + 1,), the last for padding: the record of each tile, for all layers of a forward.

    ``places int32 [tiles, 4]``: the tile's sequence (-1: padding), its first row in the forward, its number of rows (0
    or less: none) and the KV index of its first row. Sequences of fewer rows than ``least`` or more than ``most`` have
    tiles without rows.
    """
    sequence = tl.program_id(0)
    used = sequence < sequences
    begin = tl.load(cu_rows + sequence)
    end = tl.load(cu_rows + sequence + 1, mask=used, other=0)
    end = tl.where(used, end, total_rows)
    cached = tl.load(kv_lengths + sequence, mask=used, other=0) - (end - begin)
    wanted = (end - begin >= least) & (end - begin <= most)
    first_tile = begin // BLOCK_Q + sequence
    tiles = end // BLOCK_Q + sequence + 1 - first_tile
    for at in range(0, tiles, CHUNK):
        number = at + tl.arange(0, CHUNK)
        target, row = places + (first_tile + number) * 4, number * BLOCK_Q
        tl.store(target, tl.where(used, sequence, -1), mask=number < tiles)
        tl.store(target + 1, begin + row, mask=number < tiles)
        tl.store(target + 2, tl.where(wanted, tl.minimum(end - begin - row, BLOCK_Q), 0), mask=number < tiles)
        tl.store(target + 3, cached + row, mask=number < tiles)


@triton.jit
def _fetch(base, entry, place, real, MASKED: tl.constexpr, DIM: tl.constexpr, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load ``[N, Dh]`` from the pool at ``entry [N]``; 8-bit floats are converted to float16."""
    target = base + entry[:, None] * DIM + place[None, :]
    entries = tl.load(target, mask=real, other=0) if MASKED else tl.load(target)
    if FP8:
        entries = entries.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return entries


@triton.jit
def _to_float16(query):  # type: ignore[no-untyped-def]
    """Rows of bfloat16 ``[M, Dh]`` in float16, each divided by a power of two of its size, and the powers ``[M, 1]``.

    A GPU converts two 8-bit floats to float16 in one instruction, and to bfloat16 in four. The division is exact, but
    for an element that is 2^17 times smaller than the largest of its row.
    """
    wide = query.to(tl.float32)
    size = tl.maximum(tl.max(tl.abs(wide), axis=1), 1.0e-30)[:, None]
    power = (size.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.div_rn(wide, tl.zeros_like(wide) + power).to(tl.float16), power


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
    end,
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
    if PAGE % BLOCK_N == 0:  # a block is within one page: an address, and offsets that are the same for all blocks
        first = (page.to(tl.int64) * PAGE + begin % PAGE) * DIM
        k_head += first
        v_head += first
        entry = tl.arange(0, BLOCK_N)
    else:
        entry = tl.load(pages + key // PAGE, mask=key < end, other=0).to(tl.int64) * PAGE + key % PAGE
    real = (key < end)[:, None] & (place < DIM)[None, :]
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


@triton.jit
def _walk(  # type: ignore[no-untyped-def]
    acc, top, total, query, limit, k_head, v_head, pages, page, begin, stop, end, place, scale, MASKED: tl.constexpr,
    DIM: tl.constexpr, DIM_P: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """:func:`_block` of one block after the other, from ``begin`` up to ``stop``, and the page of the next one.

    The page of the next block is read ahead if a block is within a page: otherwise the addresses of the next keys would
    be unknown until this block is done, and their loads could not start early.
    """
    for at in range(begin, stop, BLOCK_N):
        following = tl.load(pages + tl.minimum(at + BLOCK_N, end - 1) // PAGE)
        acc, top, total = _block(
            acc, top, total, query, limit, k_head, v_head, pages, page, at, end, place, scale, MASKED, DIM, DIM_P,
            PAGE, BLOCK_N, FP8,
        )  # fmt: skip
        page = following
    return acc, top, total, page


@triton.jit
def _range(end, split, splits, SPLIT: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """The KV entries of a program: all up to ``end``, or with SPLIT a part of whole blocks."""
    begin = 0
    if SPLIT:
        share = tl.cdiv(tl.cdiv(end, splits), BLOCK_N) * BLOCK_N
        begin = split * share
        end = tl.minimum(end, begin + share)
    return begin, end


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    acc, top, total, out, parts, tops, totals, out_at, split, splits, place, real, inside, DIM: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the context of a tile's rows, or with SPLIT what :func:`join_splits` needs."""
    if SPLIT:
        part_at = out_at * splits + split
        tl.store(parts + part_at[:, None] * DIM + place[None, :], acc, mask=inside)
        top = tl.where(total == total, top, float("nan"))  # a maximum may leave out NaN: it must not go
        tl.store(tops + part_at, top, mask=real)
        tl.store(totals + part_at, total, mask=real)
    else:
        context = acc / total[:, None]
        tl.store(out + out_at[:, None] * DIM + place[None, :], context.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["splits", "pages_stride"], do_not_specialize_on_alignment=["totals"])
def attend_tiles(  # type: ignore[no-untyped-def]
    q, k, v, out, parts, tops, totals, places, pages, scale, splits, pages_stride, q_row_stride, q_head_stride,
    num_entries, HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, DIM: tl.constexpr,
    DIM_P: tl.constexpr, PAGE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    SKIP_MASK: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, KV heads, splits).

    ``q [T', H, Dh]`` -> ``out`` of the same shape (contiguous), or with SPLIT to ``parts [T', H, splits, Dh]``,
    ``tops`` and ``totals [T', H, splits]`` (float32: unnormalised context, maximum and sum; of a range without a
    visible key for a row, only its maximum of -inf is sure to be written). ``scale`` is the softmax's times log2(e).
    SKIP_MASK omits the mask for blocks that the whole tile attends to, in a loop of their own.
    """
    wait_for_inputs(DEPENDENT)
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, first_row = tl.load(places + tile * 4), tl.load(places + tile * 4 + 1)
    rows, first_key = tl.load(places + tile * 4 + 2), tl.load(places + tile * 4 + 3)
    if rows <= 0:
        return
    member, place = tl.arange(0, BLOCK_Q * GROUP_P), tl.arange(0, DIM_P)
    row, head = member // GROUP_P, kv_head * GROUP + member % GROUP_P
    row_at = (first_row + row).to(tl.int64)
    real = (row < rows) & (member % GROUP_P < GROUP)
    inside = real[:, None] & (place < DIM)[None, :]
    out_at = row_at * HEADS + head
    begin, end = _range(tl.where(sequence < 0, 0, first_key + rows), split, splits, SPLIT, BLOCK_N)
    if begin >= end:
        if SPLIT:
            tl.store(tops + out_at * splits + split, float("-inf"), mask=real)
        else:
            tl.store(out + out_at[:, None] * DIM + place[None, :], 0.0, mask=inside)
        return
    page_row = pages + sequence.to(tl.int64) * pages_stride
    page = tl.load(page_row + begin // PAGE)
    query_at = (row_at * q_row_stride + head * q_head_stride)[:, None] + place[None, :]
    query = tl.load(q + query_at, mask=inside, other=0.0)
    if FP8 and query.dtype == tl.bfloat16:
        query, power = _to_float16(query)
        scale = scale * power
    limit, base = first_key + row, kv_head.to(tl.int64) * num_entries * DIM
    acc = tl.zeros((BLOCK_Q * GROUP_P, DIM_P), dtype=tl.float32)
    top, total = tl.full((BLOCK_Q * GROUP_P,), float("-inf"), tl.float32), tl.zeros((BLOCK_Q * GROUP_P,), tl.float32)
    whole = begin
    if SKIP_MASK:  # blocks that the tile's first row attends to completely
        whole = tl.maximum(begin, tl.minimum(end, (first_key + 1) // BLOCK_N * BLOCK_N))
        acc, top, total, page = _walk(
            acc, top, total, query, limit, k + base, v + base, page_row, page, begin, whole, end, place, scale, False,
            DIM, DIM_P, PAGE, BLOCK_N, FP8,
        )  # fmt: skip
    acc, top, total, page = _walk(
        acc, top, total, query, limit, k + base, v + base, page_row, page, whole, end, end, place, scale, True,
        DIM, DIM_P, PAGE, BLOCK_N, FP8,
    )  # fmt: skip
    _write(acc, top, total, out, parts, tops, totals, out_at, split, splits, place, real, inside, DIM, SPLIT)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["totals"])
def join_splits(  # type: ignore[no-untyped-def]
    parts,
    tops,
    totals,
    out,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    SPLITS_P: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (rows, query heads): join the results of a row's KV ranges; zeros if it saw nothing (padding).

    Nothing is looked up first: all loads start at once, and values that no program wrote are dropped afterwards.
    """
    wait_for_inputs(DEPENDENT)
    at = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split, place = tl.arange(0, SPLITS_P), tl.arange(0, DIM_P)
    part_at, used = at * splits + split, split < splits
    top = tl.load(tops + part_at, mask=used, other=float("-inf"))
    total = tl.load(totals + part_at, mask=used, other=0.0)
    inside = used[:, None] & (place < DIM)[None, :]
    part = tl.load(parts + part_at[:, None] * DIM + place[None, :], mask=inside, other=0.0)
    seen = top != float("-inf")
    weight = tl.exp2(top - tl.maximum(tl.max(top, axis=0), -3e38))  # 0 for invisible keys
    total = tl.sum(tl.where(seen, total, 0.0) * weight, axis=0)
    context = tl.sum(tl.where(seen[:, None], part, 0.0) * weight[:, None], axis=0)
    context = context / tl.where(total == 0, 1.0, total)
    tl.store(out + at * DIM + place, context.to(out.dtype.element_ty), mask=place < DIM)
