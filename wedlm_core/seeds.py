"""Seeds of rows and samples, as pure functions of (run seed, row, sample). Imports no torch.

The pipeline, the LLM and the tests all use these functions. Therefore a row gets the same tokens in any batch, on any
actor and after any preemption. The sampling noise is :mod:`wedlm_core.kernels.cpu.noise`'s: a function of
(seed, position).
"""

from __future__ import annotations

import hashlib


def row_seed(run_seed: int, row_id: str, sample_index: int = 0) -> int:
    """Seed of one sample of one row: a 63-bit hash of ``(run_seed, row_id, sample_index)``."""
    text = f"{run_seed}\x1f{row_id}\x1f{sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def sample_seed(seed: int, sample_index: int) -> int:
    """Seed of sample ``sample_index`` of a request with seed ``seed``; sample 0 keeps the seed itself."""
    return seed if sample_index == 0 else row_seed(seed, "sample", sample_index)


def turn_seed(seed: int, turn: int) -> int:
    """Seed of turn ``turn`` of a conversation whose first turn, number 0, has the seed ``seed``."""
    return seed if turn == 0 else row_seed(seed, "turn", turn)
