"""``choose`` on CPU in float32 by the compiled kernel; :func:`wedlm_core.decoding.sampling.choose` is its oracle."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.sampling import Choice, SamplingRows, choose

__all__ = ["choose_compiled"]


def choose_compiled(
    logits_RV: Tensor, rows: SamplingRows, filtered_R: np.ndarray, *, mask_token_id: int, vocab_limit: int
) -> Choice:
    """See :func:`wedlm_core.decoding.sampling.choose`.

    Args:
        logits_RV: float32 ``[R, V]``, contiguous; changed where ids are suppressed.
        rows: sampling inputs of each row.
        filtered_R: bool, rows with top-k or top-p: their choice is the oracle's, whatever the other rows are.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
    """
    from wedlm_core.kernels.sampling import choose_rows

    count = logits_RV.shape[0]
    choice = Choice(
        token_R=torch.empty(count, dtype=torch.int64), entropy_R=torch.empty(count), logprob_R=torch.empty(count)
    )
    choose_rows(
        logits_RV.numpy(),
        rows.temperature_R.numpy(),
        rows.seed_R.numpy(),
        rows.position_R.numpy(),
        rows.suppress_R.numpy(),
        mask_token_id,
        vocab_limit,
        choice.token_R.numpy(),
        choice.entropy_R.numpy(),
        choice.logprob_R.numpy(),
        0,
        count,
    )
    if (rows.filtered_k or rows.filtered_p) and filtered_R.any():
        picked = torch.from_numpy(np.flatnonzero(filtered_R))
        slow = choose(
            logits_RV.index_select(0, picked), rows.take(picked), mask_token_id=mask_token_id, vocab_limit=vocab_limit
        )
        choice.token_R[picked], choice.entropy_R[picked] = slow.token_R, slow.entropy_R
        choice.logprob_R[picked] = slow.logprob_R
    return choice
