"""Triton kernels on a machine without a GPU: Triton's interpreter runs them, slowly, on CPU tensors."""

from __future__ import annotations

import os
import sys

import torch

__all__ = ["set_up"]


def set_up() -> None:
    """Choose the interpreter where there is no CUDA device; on a GPU the kernels are compiled.

    Triton reads the variable when it decorates a kernel, so this has to come before any module of kernels is
    imported; ``tests/conftest.py`` calls it before tests are collected.
    """
    if torch.cuda.is_available():
        return
    assert "triton" not in sys.modules, "import triton (and modules of kernels) after tests/conftest.py"
    os.environ["TRITON_INTERPRET"] = "1"
