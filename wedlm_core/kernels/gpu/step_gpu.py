"""Packing rows and advancing windows for ``verified`` on a device, one Triton kernel each.

Integers and copies only, so results equal those of tensor operations bit for bit: :func:`pack_rows` those of
:mod:`wedlm_core.engine.forward.pack_gpu`, :func:`advance_windows` those of
:class:`wedlm_core.decoding.strategies.verified.VerifiedDecoding`. A verified window is drafts, then masks, after a
head: physical order is logical, row r of a sequence stands at position ``context + r``, and every decode row needs
logits. Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _counts(facts, stride, context, length, sequences, decoding, SEQ_P: tl.constexpr):  # type: ignore[no-untyped-def]
    """Context, first KV entry, rows and decode rows of every sequence, int32 ``[SEQ_P]``; 0 at places without one."""
    index = tl.arange(0, SEQ_P)
    slot = tl.load(facts + index, mask=index < sequences, other=-1)
    there = slot >= 0
    prefill = tl.load(facts + stride + index, mask=there, other=0).to(tl.int32)
    start = tl.load(facts + 2 * stride + index, mask=there, other=0).to(tl.int32)
    known = tl.load(context + slot, mask=there, other=0).to(tl.int32)
    decode = tl.load(length + slot, mask=there & (index < decoding), other=-1).to(tl.int32) + 1
    return known, tl.where(start < 0, known, start), prefill + decode, decode


@triton.jit
def _write_spans(  # type: ignore[no-untyped-def]
    context_out, cu_rows, kv_lengths, first_picks, known, start, count, decode, sequences, decoding, SEQ_P: tl.constexpr
):
    """Facts of each sequence: context, edges of its rows, KV entries, first pick."""
    index = tl.arange(0, SEQ_P)
    there = index < sequences
    tl.store(context_out + index, known.to(tl.int64), mask=there)
    tl.store(cu_rows + index, tl.zeros_like(count), mask=index == 0)
    tl.store(cu_rows + 1 + index, tl.cumsum(count, axis=0), mask=there)
    tl.store(kv_lengths + index, start + count, mask=there)
    tl.store(first_picks + index, tl.cumsum(decode, axis=0) - decode, mask=index < decoding)


@triton.jit
def _copy_pages(facts, page_table, columns, pages_out, deepest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The page table of this program's sequence."""
    sequence = tl.program_id(0)
    slot = tl.load(facts + sequence)
    for at in range(0, deepest, BLOCK):
        page = at + tl.arange(0, BLOCK)
        inside = page < deepest
        entry = tl.load(page_table + slot * columns + page, mask=inside & (slot >= 0), other=0)
        tl.store(pages_out + sequence.to(tl.int64) * deepest + page, entry, mask=inside)


@triton.jit
def _write_picks(picks_out, picks, row, pick, slot, position, real):  # type: ignore[no-untyped-def]
    """Row, slot and position of the token chosen, of those picks that are real and among the first ``picks``."""
    kept = real & (pick < picks)
    tl.store(picks_out + pick, row.to(tl.int64), mask=kept)
    tl.store(picks_out + picks + pick, slot, mask=kept)
    tl.store(picks_out + 2 * picks + pick, position, mask=kept)


@triton.jit(
    do_not_specialize=[
        "facts_stride", "sequences", "decoding", "total", "picks", "deepest", "places", "positions", "columns",
    ],
    do_not_specialize_on_alignment=["kv_lengths"],
)  # fmt: skip
def pack_rows(  # type: ignore[no-untyped-def]
    facts,
    facts_stride,
    context,
    length,
    lead,
    head,
    window_token,
    tokens,
    page_table,
    rows_out,
    picks_out,
    context_out,
    first_picks,
    cu_rows,
    kv_lengths,
    pages_out,
    sequences,
    decoding,
    total,
    picks,
    deepest,
    places,
    positions,
    columns,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SEQ_P: tl.constexpr,
):
    """Program (BLOCK rows and picks, and the page table of one sequence): each sequence's prefill, then decode rows.

    Args:
        facts: int64 ``[3, facts_stride]``: slot (-1: a place without a sequence, never the first), prefill rows, and KV
            entries before (-1: those of its context).
        facts_stride: elements of a line of facts.
        context: int64 ``[slots]``, KV entries before a slot's decode rows.
        length: int64 ``[slots]``, places of its window.
        lead: int64 ``[slots]``, drafts of its window.
        head: int64 ``[slots]``, its head.
        window_token: int64 ``[slots, places]``.
        tokens: int64 ``[slots, positions]``, known tokens.
        page_table: int32 ``[slots, columns]``.
        rows_out: int64 ``[3, total]``, written: token, logical position and KV entry of each row; of padding 0, 0, -1.
        picks_out: int64 ``[3, picks]``, written: row, slot and position of the token chosen, of each decode row;
            after them row 0 for the first sequence, at position 0.
        context_out: int64 ``[S]``, written: ``context`` of each sequence.
        first_picks: int32 ``[D]``, written: the pick of each decoding sequence's head.
        cu_rows: int32 ``[S + 1]``, written: edges of the sequences' rows.
        kv_lengths: int32 ``[S]``, written: KV entries of each sequence, its own rows included.
        pages_out: int32 ``[S, deepest]``, written.
        sequences: S.
        decoding: D; the first D sequences have decode rows.
        total: rows, with padding.
        picks: picks, with padding.
        deepest: pages of a sequence that are copied.
        places: of a window.
        positions: of known tokens.
        columns: of a page table.
        PAGE: tokens per page.
        BLOCK: rows of a program.
        SEQ_P: a power of two, S at least.
    """
    program = tl.program_id(0)
    known, start, count, decode = _counts(facts, facts_stride, context, length, sequences, decoding, SEQ_P)
    if program == 0:
        _write_spans(
            context_out, cu_rows, kv_lengths, first_picks, known, start, count, decode, sequences, decoding, SEQ_P
        )
    if program < sequences:
        _copy_pages(facts, page_table, columns, pages_out, deepest, 128)
    if program * BLOCK >= tl.maximum(total, picks):
        return
    row = program * BLOCK + tl.arange(0, BLOCK)
    end, picked = tl.cumsum(count, axis=0), tl.cumsum(decode, axis=0)
    before = end[None, :] <= row[:, None]
    sequence = tl.sum(before.to(tl.int32), axis=1)
    first = tl.max(tl.where(before, end[None, :], 0), axis=1)  # after the rows of all sequences before
    pick = tl.max(tl.where(before, picked[None, :], 0), axis=1)
    real = row < tl.sum(count, axis=0)

    slot = tl.load(facts + sequence, mask=real, other=0)
    prefill = tl.load(facts + facts_stride + sequence, mask=real, other=0).to(tl.int32)
    begin = tl.load(facts + 2 * facts_stride + sequence, mask=real, other=0)
    begin = tl.where(begin < 0, tl.load(context + slot, mask=real & (begin < 0), other=0), begin)
    place = row - first - prefill  # of a decode row: 0 is the head's
    position = begin + (row - first)
    decodes = real & (place >= 0) & (sequence < decoding)
    token = tl.load(tokens + slot * positions + position, mask=real & ~decodes, other=0)
    token += tl.load(head + slot, mask=decodes & (place == 0), other=0)
    token += tl.load(window_token + slot * places + place - 1, mask=decodes & (place > 0), other=0)
    page = tl.load(page_table + slot * columns + position // PAGE, mask=real, other=0).to(tl.int64)
    written = row < total
    tl.store(rows_out + row, token, mask=written)
    tl.store(rows_out + total + row, tl.where(real, position, 0), mask=written)
    tl.store(rows_out + 2 * total + row, tl.where(real, page * PAGE + position % PAGE, -1), mask=written)

    drafts = tl.load(lead + slot, mask=decodes, other=0)
    # Head and drafts choose the token after theirs, masks their own.
    chosen_at = position + (place <= drafts).to(tl.int64)
    _write_picks(picks_out, picks, row, pick + place, slot, chosen_at, decodes)
    spare = (row >= tl.sum(decode, axis=0)) & (row < picks)
    first_slot = tl.load(facts) + tl.zeros_like(slot)
    _write_picks(picks_out, picks, tl.zeros_like(row), row, first_slot, tl.zeros_like(slot), spare)


@triton.jit
def _moved(window_token, chosen_token, source, drafts, length, width):  # type: ignore[no-untyped-def]
    """The tokens at places ``source`` of a window: drafts, then the choices of masks, from one row later."""
    inside = source < width
    moved = tl.load(window_token + source, mask=inside & (source < drafts), other=0)
    chose = inside & (source >= drafts) & (source < length)
    return moved + tl.load(chosen_token + source + 1, mask=chose, other=0)


@triton.jit
def _refilled(  # type: ignore[no-untyped-def]
    token, filled, valid, emitted, slot, masks, keep_valid, keep_stale, limit, stops, place, STOPS: tl.constexpr
):
    """Drafts that are kept, up to ``max_tokens`` and a stop token, and the places of the window with its masks."""
    left = tl.maximum(tl.load(limit + slot) - emitted, 0)
    most = tl.minimum(tl.where(valid, tl.load(keep_valid + slot), tl.load(keep_stale + slot)), left)
    stopping = place < 0
    for k in tl.static_range(STOPS):  # one after the other: a tile of places and stops would need all registers
        stopping = stopping | (token == tl.load(stops + slot * STOPS + k))
    # Tokens after the filled places are read as well: a stop token there comes after all kept tokens.
    none: tl.constexpr = 1 << 30
    first_stop = tl.min(tl.where(stopping, place, none), axis=0)
    keep = filled & (place < most) & (place <= first_stop)
    drafts = tl.min(tl.where(keep, none, place), axis=0).to(tl.int64)

    masked = tl.minimum(tl.load(masks + slot), left - drafts)
    return drafts, drafts + tl.where(first_stop + 1 == drafts, 0, masked)


@triton.jit(do_not_specialize=["width", "places", "positions"])
def advance_windows(  # type: ignore[no-untyped-def]
    slots,
    first_picks,
    chosen_token,
    chosen_entropy,
    chosen_logprob,
    window_token,
    filled_out,
    length_ptr,
    lead_ptr,
    head_ptr,
    emitted_ptr,
    valid_ptr,
    masks,
    keep_valid,
    keep_stale,
    limit,
    stops,
    tokens,
    context_ptr,
    words,
    width,
    places,
    positions,
    mask_token,
    COUNT: tl.constexpr,
    NEXT_ROWS: tl.constexpr,
    CONTEXT: tl.constexpr,
    DRAFTS: tl.constexpr,
    AGREED: tl.constexpr,
    OFFERED: tl.constexpr,
    VALID: tl.constexpr,
    NEXT_VALID: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOKEN: tl.constexpr,
    ENTROPY: tl.constexpr,
    LOGPROB: tl.constexpr,
    EARLY: tl.constexpr,
    SHARES: tl.constexpr,
    STOPS: tl.constexpr,
    PLACES_P: tl.constexpr,
):
    """Program (decoding sequence): commit the agreeing drafts and the token after them, refill the window, report.

    Args:
        slots: int64 ``[D]``; -1 is a place without a sequence, and its program writes nothing.
        first_picks: int32 ``[D]``, of :func:`pack_rows`.
        chosen_token: int64 ``[R]``, the choices of the picks.
        chosen_entropy: float32 ``[R]``.
        chosen_logprob: float32 ``[R]``.
        window_token: int64 ``[slots, places]``; the first ``width`` places are moved on.
        filled_out: bool ``[slots, places]``, likewise.
        length_ptr: int64 ``[slots]``, as in ``decoding.window.Window``; moved on.
        lead_ptr: likewise.
        head_ptr: likewise.
        emitted_ptr: likewise.
        valid_ptr: bool ``[slots]``, likewise.
        masks: int64 ``[slots]``, as in ``decoding.window.WindowParams``.
        keep_valid: likewise.
        keep_stale: likewise.
        limit: likewise.
        stops: int64 ``[slots, STOPS]``, likewise.
        tokens: int64 ``[slots, positions]``; committed tokens are written to their positions.
        context_ptr: int64 ``[slots]``, moved on.
        words: int32 ``[D, COLUMNS + SHARES (width + 1)]``, written: see ``engine.forward.outcome.words_of``.
        width: places of any of these windows, before and after.
        places: of a window.
        positions: of known tokens.
        mask_token: at places that are masks.
        COUNT: column of the words that has ``count``; so the next seven.
        NEXT_ROWS: see above.
        CONTEXT: see above.
        DRAFTS: see above.
        AGREED: see above.
        OFFERED: see above.
        VALID: see above.
        NEXT_VALID: see above.
        COLUMNS: of the words, before those of each place.
        TOKEN: which share of the words after them, each one wider than the window, has tokens; so the next three.
        ENTROPY: see above.
        LOGPROB: see above.
        EARLY: see above.
        SHARES: of the words.
        STOPS: stop tokens of a slot.
        PLACES_P: a power of two, ``width + 1`` at least.
    """
    sequence = tl.program_id(0).to(tl.int64)
    slot, first = tl.load(slots + sequence), tl.load(first_picks + sequence)
    if slot < 0:
        return
    place = tl.arange(0, PLACES_P)
    inside = place < width
    window_token += slot * places
    length, drafts = tl.load(length_ptr + slot), tl.load(lead_ptr + slot)
    was_valid, emitted = tl.load(valid_ptr + slot) != 0, tl.load(emitted_ptr + slot)
    context = tl.load(context_ptr + slot)
    picked = place <= length
    chosen = tl.load(chosen_token + first + place, mask=picked, other=0)
    token = tl.load(window_token + place, mask=inside, other=0)
    draft = (place < drafts) & inside
    none: tl.constexpr = 1 << 30
    wrong = tl.min(tl.where(draft & (token == chosen), none, place), axis=0)
    agreed = tl.minimum(wrong, drafts)
    count = agreed + 1
    head = tl.sum(tl.where(place == agreed, chosen, 0), axis=0)
    # Row j + 1 holds place j; a mask's row holds its own proposal.
    after = tl.load(chosen_token + first + place + 1, mask=place < length, other=0)
    # The first mask proposes for the place that the last draft's row decides: a test of the proposals after it.
    tested = place == tl.minimum(drafts, width - 1)
    proposal = tl.sum(tl.where(tested, tl.where(draft, token, after), 0), axis=0)
    valid = (agreed == drafts) & (proposal == head)
    moved = _moved(window_token, chosen_token + first, place + count, drafts, length, width)
    filled = place < length - count
    emitted += count
    next_lead, next_length = _refilled(
        moved, filled & inside, valid, emitted, slot, masks, keep_valid, keep_stale, limit, stops, place, STOPS
    )
    tl.debug_barrier()  # all of the window is read
    kept = place < next_lead
    tl.store(window_token + place, tl.where(kept, moved, mask_token), mask=inside)
    tl.store(filled_out + slot * places + place, kept, mask=inside)
    tl.store(length_ptr + slot, next_length)
    tl.store(lead_ptr + slot, next_lead)
    tl.store(head_ptr + slot, head)
    tl.store(emitted_ptr + slot, emitted)
    tl.store(valid_ptr + slot, valid)
    tl.store(context_ptr + slot, context + count)
    tl.store(tokens + slot * positions + context + 1 + place, chosen, mask=place < count)

    share = width + 1
    words += sequence * (COLUMNS + SHARES * share)
    tl.store(words + COUNT, count.to(tl.int32))
    tl.store(words + NEXT_ROWS, (next_length + 1).to(tl.int32))
    tl.store(words + CONTEXT, count.to(tl.int32))
    tl.store(words + DRAFTS, tl.minimum(drafts, count).to(tl.int32))
    tl.store(words + AGREED, agreed.to(tl.int32))
    tl.store(words + OFFERED, drafts.to(tl.int32))
    tl.store(words + VALID, was_valid.to(tl.int32))
    tl.store(words + NEXT_VALID, valid.to(tl.int32))
    at = first + place
    entropy = tl.load(chosen_entropy + at, mask=picked, other=0.0).to(tl.int32, bitcast=True)
    logprob = tl.load(chosen_logprob + at, mask=picked, other=0.0).to(tl.int32, bitcast=True)
    words += COLUMNS + place
    reported = place < share
    tl.store(words + TOKEN * share, chosen.to(tl.int32), mask=reported)
    tl.store(words + ENTROPY * share, entropy, mask=reported)
    tl.store(words + LOGPROB * share, logprob, mask=reported)
    tl.store(words + EARLY * share, tl.zeros_like(place), mask=reported)
