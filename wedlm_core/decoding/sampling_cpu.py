"""Choices on a CPU in float32 by the compiled kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedRows
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows, Tops


def choose_cpu(logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int) -> Choice:
    """Choose one token per row (:mod:`wedlm_core.decoding.sampling`).

    Args:
        logits_RV: floating point ``[R, V]``; changed where ids are suppressed.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
    """
    from wedlm_core.kernels.cpu.sampling import choose_rows

    count = logits_RV.shape[0]
    bits_UW, line_R = _bits(rows.allowed)
    choice = Choice.new(torch.zeros, count, rows.most, logits_RV.device)
    tops = choice.tops or Tops.new(torch.zeros, 0, 0, logits_RV.device)
    record_N, slot_R = rows.adjustments_N, rows.slot_R
    choose_rows(
        logits_RV.float().contiguous().numpy(),
        rows.temperature_R.numpy(),
        *(_filter_values(rows, name) for name in ("min_p", "top_k", "top_p")),
        rows.seed_R.numpy(),
        _NO_LINES if slot_R is None else slot_R.numpy(),
        rows.position_R.numpy(),
        rows.suppress_R.numpy(),
        0 if record_N is None else record_N.data_ptr(),
        bits_UW,
        line_R,
        mask_token_id,
        vocab_limit,
        choice.token_R.numpy(),
        choice.entropy_R.numpy(),
        choice.logprob_R.numpy(),
        _NO_LINES if rows.report_R is None else rows.report_R.numpy(),
        tops.token_RK.numpy(),
        tops.logprob_RK.numpy(),
    )
    return choice


_OFF = {one.field: one for one in FILTERS}


def _filter_values(rows: SamplingRows, name: str) -> np.ndarray:
    """The values of a filter, of each row; off where no row uses it."""
    given = rows.filters.get(name)
    if given is None:
        given = torch.full(rows.temperature_R.shape, _OFF[name].off, dtype=_OFF[name].dtype)
    return given.numpy()


_NO_BITS, _NO_LINES = np.zeros((0, 0), dtype=np.uint32), np.zeros(0, dtype=np.int64)


def _bits(allowed: AllowedRows | None) -> tuple[np.ndarray, np.ndarray]:
    """Bits and lines as the kernel takes them; no lines where no row has a grammar."""
    if allowed is None:
        return _NO_BITS, _NO_LINES
    return allowed.bits_UW.numpy().view(np.uint32), allowed.line_R.numpy()
