"""Joins the parts of several groups without changing their dtype.

numpy and torch promote arrays that they join: bools with integers become integers, float32 with integers float64, and
code that relies on the kind (``~flag``, a flag as an index) then does something else without an error. Everything in
the engine that holds values of several groups is joined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.errors import IntegrityError


def join_tensors(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """``torch.cat`` of one part or more, all of one dtype.

    Raises:
        IntegrityError: the dtypes differ.
    """
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1:
        raise IntegrityError(f"parts of different kinds are joined: {[str(part.dtype) for part in parts]}")
    return torch.cat(list(parts), dim=dim)


def join_arrays(parts: Sequence[np.ndarray], kind: np.dtype[Any] | type[np.generic], width: int = 0) -> np.ndarray:
    """One part below the other, all of dtype ``kind``; none at all give an empty array of it.

    Args:
        parts: ``[N]`` each where ``width`` is 0, else ``[N, at most width]``, which are widened by zeros.
        kind: dtype of every part and of the result.
        width: columns of the result; 0 joins flat arrays.

    Raises:
        IntegrityError: a part is of another dtype.
    """
    wrong = [str(part.dtype) for part in parts if part.dtype != kind]
    if wrong:
        raise IntegrityError(f"parts of dtype {wrong} are joined to a column of {np.dtype(kind)}")
    if not width:
        return np.concatenate([np.zeros(0, dtype=kind), *parts])
    joined = np.zeros((sum(len(part) for part in parts), width), dtype=kind)
    row = 0
    for part in parts:
        joined[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return joined
