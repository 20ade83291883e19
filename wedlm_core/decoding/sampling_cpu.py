"""``choose`` on CPU in float32 by the compiled kernel; :func:`wedlm_core.decoding.sampling.choose` is its oracle."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedRows, Refused
from wedlm_core.decoding.sampling import Choice, SamplingRows, with_filters

__all__ = ["choose_again_cpu", "choose_cpu", "rank_cpu"]


def choose_cpu(logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int) -> Choice:
    """See :func:`wedlm_core.decoding.sampling.choose`; rows with filters or adjustments are chosen by it.

    Args:
        logits_RV: float32 ``[R, V]``, contiguous; changed where ids are suppressed.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
    """
    from wedlm_core.kernels.cpu.sampling import choose_rows

    count = logits_RV.shape[0]
    bits_UW, line_R = _bits(rows.allowed)
    choice = Choice(
        token_R=torch.empty(count, dtype=torch.int64), entropy_R=torch.empty(count), logprob_R=torch.empty(count)
    )
    choose_rows(
        logits_RV.numpy(),
        rows.temperature_R.numpy(),
        rows.seed_R.numpy(),
        rows.position_R.numpy(),
        rows.suppress_R.numpy(),
        bits_UW,
        line_R,
        mask_token_id,
        vocab_limit,
        choice.token_R.numpy(),
        choice.entropy_R.numpy(),
        choice.logprob_R.numpy(),
        0,
        count,
    )
    return with_filters(choice, logits_RV, rows, mask_token_id=mask_token_id, vocab_limit=vocab_limit)


def choose_again_cpu(choice: Choice, logits_LV: Tensor, line_N: Tensor, refused: Refused) -> None:
    """Restrict greedy choices of :func:`choose_cpu` in place, where no filter or adjustment had a say.

    Args:
        choice: of all rows.
        logits_LV: as for :func:`choose_cpu`, after it.
        line_N: int64, the line of logits of each row to choose again.
        refused: these rows.
    """
    from wedlm_core.kernels.cpu.sampling import choose_again

    bits_UW, allowed_N = _bits(refused.allowed)
    choose_again(
        logits_LV.numpy(), line_N.numpy(), refused.row_N.numpy(), bits_UW, allowed_N, choice.token_R.numpy(),
        choice.logprob_R.numpy(),
    )  # fmt: skip


def rank_cpu(logits_LV: Tensor, line_N: Tensor, rows: SamplingRows, most: int) -> Tensor:
    """What rows would choose, and what instead if that were not allowed, and so on; no filter or adjustment has a say.

    Args:
        logits_LV: as for :func:`choose_cpu`, after it.
        line_N: int64, the line of logits of each row.
        rows: sampling inputs of the N rows.
        most: tokens of each.

    Returns:
        int64 ``[N, most]``; -1 where no token has a chance.
    """
    from wedlm_core.kernels.cpu.sampling import rank_rows

    token_NK = torch.empty(line_N.shape[0], most, dtype=torch.int64)
    inputs = (rows.temperature_R, rows.seed_R, rows.position_R, token_NK)
    rank_rows(logits_LV.numpy(), line_N.numpy(), *(one.numpy() for one in inputs))
    return token_NK


_NO_BITS, _NO_LINES = np.zeros((0, 0), dtype=np.uint32), np.zeros(0, dtype=np.int64)


def _bits(allowed: AllowedRows | None) -> tuple[np.ndarray, np.ndarray]:
    """Bits and lines as the kernel takes them; no lines where no row has a grammar."""
    if allowed is None:
        return _NO_BITS, _NO_LINES
    return allowed.bits_UW.numpy().view(np.uint32), allowed.line_R.numpy()
