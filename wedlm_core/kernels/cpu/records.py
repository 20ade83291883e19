"""Records that describe a forward to its kernels: :data:`TASK`, :data:`LAYER`, :data:`PRODUCT`.

:data:`TASK` has the sizes of a forward and the addresses of its arrays, :data:`LAYER` the parameters of a layer,
:data:`PRODUCT` one of its four products. Fields are int64 where nothing else is said, and addresses where they are no
sizes. Kernels of one forward are compiled apart, and call each other with the addresses of these records.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wedlm_core.kernels.cpu.array_views import array_at
from wedlm_core.kernels.cpu.compiled import kernel


def _record(text: str, **others: Any) -> np.dtype[Any]:
    return np.dtype([(name, others.get(name, np.int64)) for name in text.split()])


def _offset(kind: np.dtype[Any], name: str) -> int:
    """Where a field is in a record, in bytes."""
    assert kind.fields is not None
    return int(kind.fields[name][1])


PRODUCT = _record("weight scale bias depth outputs inputs")
"""``depth``: units of four bytes of a row (:mod:`.panel_products`); ``scale`` is not read for float weights."""
LAYER = _record(
    "input_norm post_norm q_norm k_norm keys values key_scales value_scales qkv o gate_up down",
    qkv=PRODUCT, o=PRODUCT, gate_up=PRODUCT, down=PRODUCT,
)  # fmt: skip
"""``q_norm, k_norm``: 0 where the model has none. ``keys`` to ``value_scales``: of the KV pool."""
CHOICE = _record(
    "picks pick_rows pick_slots pick_positions slots temperature seeds suppress min_p top_k top_p adjustments "
    "bits bit_lines bit_words "
    "states state_count first_states slot_states state_positions lines mask_token vocab_limit tokens entropies "
    "logprobs logit_picks reports most top_tokens top_logprobs",
)
"""How tokens are chosen at the end of a forward.

- ``picks``: rows that need a token; 0 ends the forward with ``normed``. Only those that may choose among several need
  logits.
- ``pick_rows, pick_slots, pick_positions``: int64 ``[picks]``, the row, ascending, its engine slot, and the position of
  the token that is chosen.
- ``temperature, seeds, suppress``: float32, int64 and bool ``[slots]``.
- ``min_p, top_k, top_p``: float32, int64 and float32 ``[slots]``.
- ``adjustments``: address of a record :data:`ADJUSTMENTS`; 0 where no slot has any.
- ``bits, bit_lines, bit_words``: uint32 ``[bit_lines, bit_words]``, as in
  :func:`wedlm_core.kernels.cpu.sampling.choose_rows`.
- ``states, state_count``, and ``first_states, slot_states, state_positions``: int64 ``[state_count]`` and ``[slots]``,
  as in :func:`wedlm_core.kernels.cpu.rows_read.row_lines`; ``states`` is 0 where no row is restricted.
- ``lines``: int64 ``[picks]``, written where rows are restricted: the line of each.
- ``tokens, entropies, logprobs``: int64, float32 and float32 ``[picks]``, written.
- ``logit_picks``: int64 ``[picks]``, written: the pick of each row of logits.
- ``reports``: int64 ``[slots]``, 0 where no likely tokens are reported; ``most``: how many are, 0 for none.
- ``top_tokens, top_logprobs``: int64 and float32 ``[picks, most]``, written: as :func:`.sampling.likely` does, for rows
  of logits of slots that report them.
"""
ADJUSTMENTS = _record(
    "slots uses repetition frequency presence min_tokens prompt known tokens positions "
    "stop_ids stop_width banned banned_width bias_ids bias_values bias_width words words_count words_width",
)
"""The fields of :class:`wedlm_core.decoding.adjustments.AdjustmentTables`.

- ``uses``: bool ``[slots]``.
- ``repetition, frequency, presence``: float32 ``[slots]``; ``min_tokens, prompt, known``: int64 ``[slots]``.
- ``tokens``: int64 ``[slots, positions]``.
- ``stop_ids, banned, bias_ids``: int64 ``[slots, width]``, ``bias_values`` float32; ``words``: int64
  ``[slots, words_count, words_width]``.
"""
ADVANCE = _record("decoding columns spans states mask places counts flags token nats early")
"""How windows advance after the choice: the arguments of :func:`wedlm_core.kernels.cpu.step.advance_windows`.

- ``decoding``: D, sequences; 0 leaves windows as they are.
- ``columns, spans``: int64 ``[6, columns]``, as :func:`wedlm_core.kernels.cpu.step.pack_rows` wrote them.
- ``states, mask``: address of one record :data:`wedlm_core.kernels.cpu.step.STATE`, and the mask's id.
- ``places``: C of the outcome, whose arrays are the others.
"""
TASK = _record(
    "product place attend state rows layers hidden inner heads kv_heads dim eps "
    "stream normed q context gated qkv gate_up delta narrow narrow_step row_scale row_sum apart "
    "cos sin reach positions entries "
    "blocks block kv_entries pages page_columns starts counts cached page_size sequences width scale "
    "lines final_norm head out read last_spans choice advance",
    eps=np.float32, scale=np.float32, head=PRODUCT, choice=CHOICE, advance=ADVANCE,
)  # fmt: skip
"""Of a forward or of one product.

- ``product, place, attend``: functions for the numbers at hand (:mod:`wedlm_core.kernels.cpu.forward`); without layers
  the first alone.
- ``state``: of the team.
- ``stream``: float32 ``[rows, hidden]``, the embedded rows, changed.
- ``normed, q, context, gated, qkv, gate_up, delta``: float32 scratch as wide as the model has them.
- ``narrow, row_scale, row_sum``: scratch for rows as they meet weights, ``narrow_step`` bytes each at most.
- ``apart``: with at least so many rows for each member, members take rows of a product, not outputs
  (:func:`wedlm_core.kernels.cpu.team_kernels.by_rows`); 0 where they never do.
- ``cos, sin``: float32 ``[reach, dim / 2]``.
- ``blocks`` to ``scale``: the KV pool, and the sequences that :mod:`wedlm_core.kernels.cpu.cached_attention` reads.
- ``lines``: the layers.
- ``head, out``: the product that gives logits, and its result ``[rows, outputs]``: of the rows that are read where
  tokens are chosen; with 0 layers of all of ``normed``, and nothing else is computed.
- ``read``: int64 ``[1 + rows]``, how many rows are read after the last layer, and which, ascending: written where
  tokens are chosen, else told; -1 where all are. ``normed`` holds these at the end.
- ``last_spans``: scratch, int64 ``[3, sequences]``.
- ``choice, advance``: how tokens are chosen, and the advance after it.
"""

QKV_PLACE, O_PLACE, GATE_UP_PLACE, DOWN_PLACE = (_offset(LAYER, name) for name in ("qkv", "o", "gate_up", "down"))
"""Where the products of a layer are in its record, in bytes."""
HEAD_PLACE = _offset(TASK, "head")


@kernel(inline="always")
def task_at(address):  # type: ignore[no-untyped-def]
    """The record :data:`TASK` at an address."""
    return array_at(address, (1,), TASK)[0]


@kernel(inline="always")
def adjustments_at(address):  # type: ignore[no-untyped-def]
    """The record :data:`ADJUSTMENTS` at an address."""
    return array_at(address, (1,), ADJUSTMENTS)[0]


@kernel(inline="always")
def layer_at(address):  # type: ignore[no-untyped-def]
    """The record :data:`LAYER` at an address."""
    return array_at(address, (1,), LAYER)[0]


@kernel(inline="always")
def product_at(address):  # type: ignore[no-untyped-def]
    """The record :data:`PRODUCT` at an address."""
    return array_at(address, (1,), PRODUCT)[0]
