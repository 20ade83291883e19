"""Indices of the set flags, without asking the device how many are set."""

from __future__ import annotations

import torch
from torch import Tensor


def compact_indices(flag_R: Tensor, bound: int, *, fill: int = 0) -> tuple[Tensor, Tensor]:
    """``torch.nonzero`` into a buffer of known size: no sync with the host, so a CUDA graph can hold it.

    Args:
        flag_R: bool ``[R]``.
        bound: length of the result. The caller knows that no more flags are set; the last ones beyond it are left out.
        fill: value after the last index, such as that of a padding row.

    Returns:
        int64 ``[bound]``: indices of set flags, ascending, then ``fill``; and how many flags are set
        (int64, no dimension, on the same device).
    """
    rank_R = flag_R.cumsum(dim=0)
    # Unset flags, and flags beyond the bound, are written to one place after the buffer, which is cut off.
    place_R = torch.where(flag_R & (rank_R <= bound), rank_R - 1, bound)
    index_B = torch.full((bound + 1,), fill, dtype=torch.int64, device=flag_R.device)
    index_B.scatter_(0, place_R, torch.arange(flag_R.shape[0], device=flag_R.device))
    return index_B[:bound], flag_R.sum()
