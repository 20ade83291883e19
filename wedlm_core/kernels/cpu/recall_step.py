"""What history does in a step, in two passes: take in what was committed and propose; then buy drafts and place them.

Each is passes of :mod:`wedlm_core.kernels.cpu.history` and :mod:`wedlm_core.kernels.cpu.recall` one after the other, in
one call: between forwards each call and each small array costs as much as the work on a sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.history import append, propose
from wedlm_core.kernels.cpu.purchase import buy_rows, least_row_price, step_seconds
from wedlm_core.kernels.cpu.recall import (
    Worth,
    best_prefixes,
    cut_at_stops,
    fill_windows,
    find_broken,
    open_windows,
    weigh_sources,
)
from wedlm_core.statistics import DraftSource

__all__ = ["Columns", "Committed", "Found", "Placed", "Windows", "follow", "place"]

Array = np.ndarray[Any, np.dtype[Any]]

_HISTORY = int(DraftSource.HISTORY)


class Columns(NamedTuple):
    """Columns of :class:`wedlm_core.engine.scheduling.slots.SlotTable`; ``source`` and ``rows`` are written."""

    source: Array
    stop_ids: Array
    widest: Array
    limit: Array
    generated: Array
    rows: Array
    masks: Array
    constrained: Array
    recalls: Array


class Committed(NamedTuple):
    """What a forward did for its D decoding sequences.

    Attributes:
        slots: int64 ``[D]``.
        lives: bool ``[D]``, which of them go on.
        committed, offered, next_valid: columns of ``StepOutcome``, of which the first is its ``count_D``.
    """

    slots: Array
    lives: Array
    committed: Array
    offered: Array
    next_valid: Array


class Found(NamedTuple):
    """What history proposes to D sequences: token int32 ``[D, P]``; acceptance float32 ``[D, P]``, 0 for no draft."""

    token: Array
    acceptance: Array


class Windows(NamedTuple):
    """Windows in X places, written.

    Attributes:
        place: int64 ``[D]``, where those of the decoding sequences are.
        token: int64 ``[X, L]``: drafts, and the mask id behind them.
        filled: bool ``[X, L]``, which of them are drafts.
        lead: int64 ``[X]``, drafts.
        length: int64 ``[X]``, drafts and masks.
    """

    place: Array
    token: Array
    filled: Array
    lead: Array
    length: Array


class _Held(NamedTuple):
    """Copies of G windows, and what is in them: as :func:`wedlm_core.kernels.cpu.recall.open_windows` has it."""

    token: Array
    lead: Array
    length: Array
    drafts: Array
    masks: Array
    ends: Array
    most: Array
    stops: Array


class Placed(NamedTuple):
    """What :func:`place` did: seconds that are saved, and whether any window has drafts of history now."""

    saved_seconds: float
    placed: bool


@kernel
def follow(memory, columns, slots, lives, committed, emit, found):  # type: ignore[no-untyped-def]
    """Take in what D sequences emitted, and propose what follows to those that go on.

    Args:
        memory: :class:`wedlm_core.kernels.cpu.history.Memory`.
        columns: :class:`Columns`.
        slots: int64 ``[D]``; those that are not open are passed over.
        lives: bool ``[D]``, which of them go on.
        committed: integers ``[D, C]``, tokens of the forward.
        emit: int64 ``[D]``, how many of each are output.
        found: :class:`Found`, written.

    Returns:
        The place of a sequence whose log has to grow first, -1 for none: until then nothing is done. And to how many
        sequences something may be proposed.
    """
    logs, asked = memory.logs, 0
    own, budget = np.zeros(len(slots), np.int64), np.zeros(len(slots), np.int64)
    for d in range(len(slots)):
        slot = slots[d]
        if not memory.opened[slot]:
            continue
        if logs.end[slot] + emit[d] > memory.grows_at[slot]:
            return d, 0
        own[d] = emit[d]
        if lives[d]:
            budget[d] = min(2 * columns.widest[slot], columns.limit[slot] - columns.generated[slot])
            asked += 1
    append(logs, slots, committed, own, memory.offer, memory.learned)
    count, match = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
    propose(
        logs, slots, budget, np.empty((0, 0), np.int64), np.zeros(len(slots), np.int64), memory.search, memory.learned,
        memory.offer, found.token, found.acceptance, count, match,
    )  # fmt: skip
    cut_at_stops(found.token, found.acceptance, count, columns.stop_ids[slots])
    return -1, asked


@kernel
def place(forward, found, memory, columns, windows, by_masks, prices, least, running, spare, mask):  # type: ignore[no-untyped-def]
    """Buy drafts for the next windows of the sequences that go on and have no grammar, and write the windows.

    Args:
        forward: :class:`Committed`.
        found: :class:`Found`; of no places where nothing is proposed.
        memory: :class:`wedlm_core.kernels.cpu.history.Memory`.
        columns: :class:`Columns`.
        windows: :class:`Windows`.
        by_masks: float64 ``[2, slots, W]``, as for :func:`wedlm_core.kernels.cpu.recall.weigh_sources`.
        prices: :class:`wedlm_core.kernels.cpu.purchase.Prices`.
        least: acceptance below which no draft is worth its bookkeeping.
        running: int64 ``[R]``, slots of all running sequences.
        spare: KV entries that are free.
        mask: its id.

    Returns:
        :class:`Placed`.
    """
    own = _going_on(forward, columns)
    slots, at, rows = forward.slots[own], windows.place[own], 0
    broken = np.empty(len(own), np.bool_)
    any_broken = find_broken(slots, forward.committed[own], forward.offered[own], columns.source, broken)
    for slot in running:
        rows += columns.rows[slot]
    row_price, offered = _offered(found.acceptance, own, rows, prices, least)
    if not offered and not any_broken:
        return Placed(0.0, False)
    held = _held(windows, columns, slots, at, broken)
    for g in range(len(own)):
        rows += 1 + held.drafts[g] + held.masks[g] - columns.rows[slots[g]]
    places = len(own), found.acceptance.shape[1] if offered else 0
    worth = Worth(
        np.zeros(places), np.empty(places[0]), np.empty(places[0]), np.empty(places[0]), np.ones(places[0], np.bool_)
    )
    theirs, threshold, price = np.empty(places, np.int32), np.inf, 0.0
    if offered:
        threshold, price = _choose(
            slots, forward.next_valid[own], Found(found.token[own], found.acceptance[own]), memory, columns, by_masks,
            prices, row_price, least, len(running), rows, spare, held, theirs, worth,
        )  # fmt: skip
    source = np.empty((len(own), columns.source.shape[1]), np.int8)
    fill_windows(
        slots, worth, threshold, price, theirs, by_masks, held.most, held.stops, mask, held.token, held.drafts,
        held.masks, held.lead, held.length, source,
    )  # fmt: skip
    return _write(columns, windows, slots, at, held, source, worth, by_masks, prices, rows)


@kernel
def _going_on(forward, columns):  # type: ignore[no-untyped-def]
    """Lines of the sequences that go on, have a text in the history, and no grammar."""
    own, count = np.empty(len(forward.slots), np.int64), 0
    for d in range(len(forward.slots)):
        slot = forward.slots[d]
        if forward.lives[d] and columns.recalls[slot] and not columns.constrained[slot]:
            own[count] = d
            count += 1
    return own[:count]


@kernel
def _held(windows, columns, slots, at, broken):  # type: ignore[no-untyped-def]
    """:class:`_Held` of the windows ``at``, those that are broken without their drafts."""
    count = len(slots)
    token, lead, length = windows.token[at], windows.lead[at], windows.length[at]
    stops, most = columns.stop_ids[slots], np.empty(count, np.int64)
    for g in range(count):
        slot = slots[g]
        most[g] = min(2 * columns.widest[slot], columns.limit[slot] - columns.generated[slot])
    drafts, masks, ends = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_)
    open_windows(token, lead, length, broken, columns.masks[slots], most, stops, drafts, masks, ends)
    return _Held(token, lead, length, drafts, masks, ends, most, stops)


@kernel
def _offered(acceptance, lines, rows, prices, least):  # type: ignore[no-untyped-def]
    """Commits that a row of these drafts has to bring at least, and whether any draft might."""
    drafts, likeliest = 0, 0.0
    for d in lines:
        for likely in acceptance[d]:
            drafts += likely > 0.0
            likeliest = max(likeliest, likely)
    if not drafts:
        return 0.0, False
    row_price = least_row_price(prices, rows, drafts)
    return row_price, likeliest >= max(least, row_price)


@kernel
def _choose(  # type: ignore[no-untyped-def]
    slots, valid, found, memory, columns, by_masks, prices, row_price, least, running, rows, spare, held, theirs, worth
):
    """Choose between masks' drafts and history's, then buy the likeliest of history's rows.

    Args:
        slots: int64 ``[G]``.
        valid: bool ``[G]``, the prefix of the masks' drafts is.
        found: :class:`Found` of these.
        memory: as for :func:`place`.
        columns: likewise.
        by_masks: likewise.
        prices: likewise.
        row_price: commits that a row of these has to bring at least.
        least: as for :func:`place`.
        running: sequences.
        rows: of the next forward without drafts of history.
        spare: KV entries that are free.
        held: :class:`_Held`.
        theirs: int32 ``[G, D]``, written: history's drafts.
        worth: :class:`Worth`, written.

    Returns:
        Acceptance of the drafts that are bought, at least, and commits that one more row would have to bring.
    """
    weigh_sources(slots, valid, held.drafts, held.masks, by_masks, found.acceptance, row_price, worth)
    theirs[:] = found.token
    commits, base = float(running), float(rows)
    behind = np.flatnonzero(~worth.replaces)
    for g in range(len(slots)):
        # History takes the place of masks' drafts where it promises more; else it follows them.
        if worth.replaces[g]:
            base -= held.drafts[g]
        else:
            commits += worth.value[g]
    if len(behind) > 0:
        room = np.empty(len(behind), np.int64)
        for n in range(len(behind)):
            g = behind[n]
            room[n] = 0 if held.ends[g] else max(held.most[g] - held.drafts[g], 0)
        followed, likely = found.token[behind], found.acceptance[behind]
        count, match = np.empty(len(behind), np.int64), np.empty(len(behind), np.int64)
        propose(
            memory.logs, slots[behind], room, held.token[behind], held.drafts[behind], memory.search, memory.learned,
            memory.offer, followed, likely, count, match,
        )  # fmt: skip
        cut_at_stops(followed, likely, count, columns.stop_ids[slots[behind]])
        theirs[behind] = followed
        best_prefixes(behind, likely, row_price, worth)
    bought = buy_rows(prices, worth.acceptance, commits, base, spare)
    return max(bought.threshold, least), bought.row_price


@kernel
def _write(columns, windows, slots, at, held, source, worth, by_masks, prices, rows):  # type: ignore[no-untyped-def]
    """Write the windows that ``held`` has become, of which ``source`` says where drafts come from; :class:`Placed`.

    ``rows`` are those of the next forward without drafts of history.
    """
    commits, after, placed = 0.0, np.int64(rows), False
    for g in range(len(slots)):
        slot, lead, length, recalled = slots[g], held.lead[g], held.length[g], 0
        for j in range(held.token.shape[1]):
            windows.token[at[g], j], windows.filled[at[g], j] = held.token[g, j], j < lead
        for j in range(source.shape[1]):
            columns.source[slot, j] = source[g, j]
            recalled += source[g, j] == _HISTORY
        windows.lead[at[g]], windows.length[at[g]], columns.rows[slot] = lead, length, 1 + length
        after += length - held.drafts[g] - held.masks[g]
        if recalled:
            placed = True
            commits += _gained(worth, g, recalled, length - lead, by_masks[1, slot])
    if not placed:
        return Placed(0.0, False)
    more = step_seconds(prices, after, True) - step_seconds(prices, rows, rows > prices.sequences)
    return Placed(commits * prices.seconds_per_commit - more, True)


@kernel
def _gained(worth, g, recalled, behind, following):  # type: ignore[no-untyped-def]
    """Commits that a window's drafts of history bring, in this forward and by the masks behind, over those without."""
    gained = 0.0
    for j in range(recalled):
        gained += worth.acceptance[g, j]
    reached = worth.acceptance[g, recalled - 1]
    for j in range(min(behind, len(following))):
        gained += reached * following[j]
    if worth.replaces[g]:
        gained -= worth.value[g]
    return gained - worth.reached[g] * worth.later[g]
