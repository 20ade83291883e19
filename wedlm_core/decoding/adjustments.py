"""Adjustments: changes of a row's logits before the temperature: bans, biases and penalties, one record each.

An adjustment is a field of :class:`wedlm_core.types.SamplingParams`, a record in :data:`ADJUSTMENTS`, its rule for one
row in the oracle's ``adjusted``, and in two kernels: ``adjusting.py`` for CPU, ``adjusting_gpu.py`` for GPU. Only rows
of sequences that use one are looked at.

The tokens *before a row* are a stretch of ``tokens_SL``: the prompt, committed tokens, and the drafts of this forward,
in order. So the row of draft j counts the drafts up to j, and decides as autoregressive decoding does after the same
tokens. Masks count known tokens; they only propose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kernels.cpu.records import ADJUSTMENTS as ADJUSTMENTS_RECORD


@dataclass(frozen=True, kw_only=True)
class AdjustmentTables:
    """Inputs of the adjustments of S slots, on the device.

    Attributes:
        columns: numbers by slot, ``[S]``, under the fields' names.
        lists: lists by slot, ``[S, ...]``, under the names of :data:`LISTS`: of token ids, -1 after the last
            (``bad_words``: before the first of each word), or of values.
        uses_S: bool, slots with any adjustment.
        prompt_S: int64, tokens of the prompt.
        known_S: int64, tokens of the sequence that are known: prompt, committed, and this forward's drafts.
        tokens_SL: int64, those tokens by position; any value after them.
    """

    columns: Mapping[str, Tensor]
    lists: Mapping[str, Tensor]
    uses_S: Tensor
    prompt_S: Tensor
    known_S: Tensor
    tokens_SL: Tensor


def adjustments_record(tables: AdjustmentTables) -> np.ndarray:
    """A record :data:`wedlm_core.kernels.cpu.records.ADJUSTMENTS` of tables, which have to stay."""
    record, columns, lists = np.zeros(1, dtype=ADJUSTMENTS_RECORD), tables.columns, tables.lists
    addresses = {
        "uses": tables.uses_S, "repetition": columns["repetition_penalty"], "frequency": columns["frequency_penalty"],
        "presence": columns["presence_penalty"], "min_tokens": columns["min_tokens"], "prompt": tables.prompt_S,
        "known": tables.known_S, "tokens": tables.tokens_SL, "stop_ids": lists["stop_ids"],
        "banned": lists["suppressed"], "bias_ids": lists["bias_ids"], "bias_values": lists["bias_values"],
        "words": lists["bad_words"],
    }  # fmt: skip
    for name, tensor in addresses.items():
        record[name] = tensor.data_ptr()
    record["slots"], record["positions"] = tables.tokens_SL.shape
    record["stop_width"] = lists["stop_ids"].shape[1]
    record["banned_width"] = lists["suppressed"].shape[1]
    record["bias_width"] = lists["bias_ids"].shape[1]
    record["words_count"], record["words_width"] = lists["bad_words"].shape[1:]
    return record


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """One way of changing logits.

    Attributes:
        field: of ``SamplingParams``.
        off: the value that changes nothing.
        example: a value that changes something, for measurements and tests.
        dtype: of the values of slots; None where the field is a list.
        reads_history: it depends on the tokens before the row.
    """

    field: str
    off: object
    example: object
    dtype: torch.dtype | None = None
    reads_history: bool = False


ADJUSTMENTS: tuple[Adjustment, ...] = (
    Adjustment(field="bad_words", off=(), example=("e",), reads_history=True),
    Adjustment(field="suppress_tokens", off=(), example=(0, 1)),
    Adjustment(field="min_tokens", off=0, example=4, dtype=torch.int64),
    Adjustment(field="logit_bias", off=(), example=((0, 5.0), (1, -100.0))),
    Adjustment(field="repetition_penalty", off=1.0, example=1.3, dtype=torch.float32, reads_history=True),
    Adjustment(field="frequency_penalty", off=0.0, example=0.5, dtype=torch.float32, reads_history=True),
    Adjustment(field="presence_penalty", off=0.0, example=0.7, dtype=torch.float32, reads_history=True),
)
"""Every adjustment, in the order of application."""

LISTS: Mapping[str, tuple[torch.dtype, int]] = {
    "stop_ids": (torch.int64, 1),
    "suppressed": (torch.int64, 1),
    "bias_ids": (torch.int64, 1),
    "bias_values": (torch.float32, 1),
    "bad_words": (torch.int64, 2),
}
"""Lists that adjustments read: their contents and dimensions."""
