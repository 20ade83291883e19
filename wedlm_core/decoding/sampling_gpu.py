"""``choose`` on a GPU by one Triton pass over the logits, and which form of ``choose`` serves an engine."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Protocol

import torch
from torch import Tensor

from wedlm_core.decoding.sampling import Choice, SamplingRows, choose, with_filters
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.devices import on_device

__all__ = ["Chooser", "choose_gpu", "chooser"]

logger = logging.getLogger(__name__)

_TILE = 1024  # tokens that a program has in registers at once
_WARPS = 4
_GROUP = 4  # tiles whose sums stay in registers
_PROGRAMS_PER_PROCESSOR = 16  # several waves of programs, so that the last one leaves little idle


class Chooser(Protocol):
    """One token per row of logits; :func:`wedlm_core.decoding.sampling.choose` says what is chosen."""

    def __call__(self, logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int) -> Choice:
        """Choose; the logits may be changed where ids are suppressed."""
        ...


def chooser(device: torch.device, *, cpu_kernels: bool = False) -> Chooser:
    """The form of ``choose`` for an engine, to be asked for once.

    Args:
        device: where the logits are.
        cpu_kernels: whether the CPU kernels run the rest of the step.
    """
    if cpu_kernels:
        return choose_cpu
    if device.type != "cuda":
        return choose
    if importlib.util.find_spec("triton") is None:
        logger.warning("sampler: torch on %s; the package triton would make it one pass over the logits", device)
        return choose
    return choose_gpu


def choose_gpu(
    logits_RV: Tensor,
    rows: SamplingRows,
    *,
    mask_token_id: int,
    vocab_limit: int,
    splits: int | None = None,
    tile: int = _TILE,
) -> Choice:
    """See :func:`wedlm_core.decoding.sampling.choose`; a row's result is bitwise the same beside any others.

    Rows with filters or adjustments are chosen by the oracle, which waits for the device to say which they are; without
    such rows nothing waits.

    Args:
        logits_RV: float32, bfloat16 or float16 ``[R, V]``, rows contiguous; not changed.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
        splits: programs that share a row at most; None takes as many as fill the device. It changes no result.
        tile: tokens of a tile, a power of two; the sums' last bits depend on it.
    """
    from wedlm_core.kernels.gpu.sampling import combine_tiles, reduce_tiles

    count, vocab = logits_RV.shape
    device = logits_RV.device
    choice = Choice(
        token_R=torch.empty(count, dtype=torch.int64, device=device),
        entropy_R=torch.empty(count, device=device),
        logprob_R=torch.empty(count, device=device),
    )
    if count == 0:
        return choice
    if logits_RV.stride(1) != 1:
        logits_RV = logits_RV.contiguous()
    tiles = -(-vocab // tile)
    groups = -(-tiles // _GROUP)
    each = -(-groups // min(splits or _splits(count, device), groups))
    splits = -(-groups // each)
    # A row's entropy is of the distribution it samples from where it suppresses and has a temperature.
    two_heats = rows.sampled and rows.suppressing
    partial_4RG = torch.empty(4, count, groups, device=device)
    best_RP = torch.empty(count, splits, device=device)
    place_RP = torch.empty(count, splits, dtype=torch.int32, device=device)
    stride = logits_RV.stride(0)
    allowed = rows.allowed
    # Without a grammar these are read by no one.
    bits_UW, line_R = (best_RP, best_RP) if allowed is None else (allowed.bits_UW, allowed.line_R)
    with on_device(logits_RV.device):
        reduce_tiles[(count, splits)](
            logits_RV, stride, rows.temperature_R, rows.seed_R, rows.position_R, rows.suppress_R,
            bits_UW, line_R, partial_4RG, best_RP, place_RP, count * groups, vocab, bits_UW.shape[1],
            mask_token_id, vocab_limit, tiles, groups, each,
            ALLOWED=allowed is not None, SAMPLED=rows.sampled, TWO_HEATS=two_heats, LIBM=logits_RV.is_cuda,
            TILE=tile, GROUP=_GROUP, num_warps=_WARPS,
        )  # fmt: skip
        combine_tiles[(count,)](
            logits_RV, stride, rows.temperature_R, rows.suppress_R, partial_4RG, best_RP, place_RP,
            choice.token_R, choice.entropy_R, choice.logprob_R, count * groups, groups, splits,
            TWO_HEATS=two_heats, GROUPS=_power_of_two(groups), SPLITS=_power_of_two(splits), num_warps=1,
        )  # fmt: skip
    return with_filters(choice, logits_RV, rows, mask_token_id=mask_token_id, vocab_limit=vocab_limit)


def _splits(rows: int, device: torch.device) -> int:
    """Programs per row: enough for a handful of rows to fill the device, one where there are thousands."""
    return -(-_PROGRAMS_PER_PROCESSOR * _processors(device) // rows)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
