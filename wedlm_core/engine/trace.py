"""Records of decode forwards for ``Generation.trace``: the fields of a conformance step, in plain Python.

Only built with ``EngineConfig(trace=True)``; slow and readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wedlm_core.decoding.window_state import RowLayout, Window
from wedlm_core.engine.forward.runner import StepDetail
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import Emission, IntArray, SlotTable


def add_records(
    plan: ForwardPlan,
    details: Sequence[StepDetail],
    table: SlotTable,
    context_D: IntArray,
    emit_D: IntArray,
    emission: Emission,
) -> None:
    """Give each decoding sequence of a plan the record of its forward, which is in the table already."""
    members = [(detail, member) for detail in details for member in range(len(detail.layout.count_S))]
    for row, (detail, member) in enumerate(members):
        sequence, stopped = plan.sequences[row], bool(emission.stopped_D[row])
        record = step_record(
            detail,
            member,
            context=int(context_D[row]),
            emitted=table.tokens_of(sequence.slot)[-int(emit_D[row]) :] if emit_D[row] else [],
            finished=stopped or bool(emission.full_D[row]) or sequence.finish is not None,
            stopped=stopped,
        )
        sequence.trace.append(record)


def step_record(
    detail: StepDetail, member: int, *, context: int, emitted: list[int], finished: bool, stopped: bool
) -> dict[str, Any]:
    """One decode forward of one sequence.

    Args:
        detail: the group's window before the forward, its layout, choices and commit.
        member: the sequence's row in the group.
        context: tokens whose KV was final before the forward.
        emitted: tokens of this forward's commit that were output.
        finished: whether the sequence ended with it (then fills are moot and left out).
        stopped: whether a stop token ended it (then the commit is shown up to that token).

    Returns:
        ``base_position`` (absolute position of window place 0), ``window_size, window_tokens, mask_flags`` in
        logical order; ``physical_order, input_ids, positions`` in physical order (with a head, its row
        first); ``num_filled, prefix_len, decoder_committed, committed, finished``; ``mask_positions,
        entropies`` (nats), ``argmax`` of the masks in logical order; ``fill_indices`` into them,
        ``fill_positions, fill_tokens``.
    """
    window, layout, commit = detail.window, detail.layout, detail.commit
    length, head = int(window.length_S[member]), int(layout.has_head_S[member])
    rows = int(layout.count_S[member])
    base = context + head
    filled = window.filled_SL[member, :length].tolist()
    committed = int(commit.count_S[member])
    leaving = int(commit.context_S[member]) - head
    record: dict[str, Any] = {
        "base_position": base,
        "window_size": length,
        "window_tokens": window.token_SL[member, :length].tolist(),
        "mask_flags": [int(not f) for f in filled],
        "physical_order": layout.order_SL[member, :length].tolist(),
        "input_ids": layout.id_SR[member, :rows].tolist(),
        "positions": (layout.offset_SR[member, :rows] + context).tolist(),
        "num_filled": sum(filled),
        "prefix_len": leaving,
        "decoder_committed": emitted if stopped else commit.token_SC[member, :committed].tolist(),
        "committed": emitted,
        "finished": finished,
    }
    return record | _fills(detail, window, layout, member, base, finished)


def _fills(
    detail: StepDetail, window: Window, layout: RowLayout, member: int, base: int, finished: bool
) -> dict[str, Any]:
    """The masks of the forward, their proposals, and which were filled."""
    length, head = int(window.length_S[member]), int(layout.has_head_S[member])
    order = layout.order_SL[member, :length].tolist()
    row_of = {slot: place + head for place, slot in enumerate(order)}
    masks = [] if finished else [i for i in range(length) if not bool(window.filled_SL[member, i])]
    token = {i: int(detail.choices.token_SR[member, row_of[i]]) for i in masks}
    entropy = {i: float(detail.choices.entropy_SR[member, row_of[i]]) for i in masks}
    chosen = [n for n, i in enumerate(masks) if bool(detail.commit.fill_SL[member, i])]
    return {
        "mask_positions": [base + i for i in masks],
        "entropies": [entropy[i] for i in masks],
        "argmax": [token[i] for i in masks],
        "fill_indices": chosen,
        "fill_positions": [base + masks[n] for n in chosen],
        "fill_tokens": [token[masks[n]] for n in chosen],
    }
