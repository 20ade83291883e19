"""Arrays over memory that is given by its address, so that records of integers can describe a forward."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.compiled import kernel


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), generate


_at: Any = _pointer


@kernel(inline="always")
def array_at(address, shape, dtype):  # type: ignore[no-untyped-def]
    """A C-contiguous array that does not own its memory."""
    return carray(_at(address), shape, dtype)


@kernel(inline="always")
def floats_at(address, rows, columns):  # type: ignore[no-untyped-def]
    """float32 ``[rows, columns]``."""
    return carray(_at(address), (rows, columns), np.float32)


@kernel(inline="always")
def numbers_at(address, size):  # type: ignore[no-untyped-def]
    """int64 ``[size]``."""
    return carray(_at(address), (size,), np.int64)
