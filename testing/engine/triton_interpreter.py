"""Select Triton's interpreter on machines without a GPU: it runs kernels, slowly, on CPU tensors."""

from __future__ import annotations

import os
import sys

import torch

__all__ = ["set_up"]


def set_up() -> None:
    """Select the interpreter if there is no CUDA device; on a GPU kernels are compiled.

    Triton reads the variable when it decorates a kernel, so call this before any kernel module is imported;
    ``tests/conftest.py`` calls it before tests are collected.
    """
    if torch.cuda.is_available():
        return
    assert "triton" not in sys.modules, "import triton (and modules of kernels) after tests/conftest.py"
    os.environ["TRITON_INTERPRET"] = "1"
