"""Choices on a GPU by Triton kernels, and the selection of an engine's sampler."""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch import Tensor

from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows, Tops
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.devices import on_device
from wedlm_core.errors import ConfigError, explain
from wedlm_core.kernels.gpu.support import why_no_triton

_TILE = 1024  # tokens that a program has in registers at once
_WARPS = 4
_COMBINING_WARPS = 8
_GROUP = 4  # tiles whose sums stay in registers
_PROGRAMS_PER_PROCESSOR = 16  # several waves of programs, so that the last one leaves little idle


class Chooser(Protocol):
    """One token per row of logits; :mod:`wedlm_core.decoding.sampling` defines the choice."""

    def __call__(self, logits_RV: Tensor, rows: SamplingRows, *, mask_token_id: int, vocab_limit: int) -> Choice:
        """Choose; the logits may be changed where ids are suppressed."""
        ...


def chooser(device: torch.device) -> Chooser:
    """The sampler for the device of the logits, to be asked for once.

    Raises:
        ConfigError: Triton kernels do not run on this GPU.
    """
    if device.type != "cuda":
        return choose_cpu
    why = why_no_triton(device)
    if why is not None:
        remedy = 'Install the Triton that torch for CUDA brings, with a C compiler for it, or use device="cpu".'
        raise ConfigError(explain("device", str(device), f"a Triton kernel chooses tokens there, and {why}", remedy))
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
    """Choose one token per row; a row's result is bitwise the same in any batch, and nothing waits.

    Args:
        logits_RV: float32, bfloat16 or float16 ``[R, V]``, rows contiguous; not changed.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
        splits: programs that share a row at most; None takes as many as fill the device. It changes no result.
        tile: tokens of a tile, a power of two from 32 on; the sums' last bits depend on it.
    """
    from wedlm_core.kernels.gpu.sampling import combine_tiles, reduce_tiles

    count, vocab = logits_RV.shape
    device = logits_RV.device
    choice = Choice.new(torch.empty, count, rows.most, device)
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
    stride, filters, record_N, allowed = logits_RV.stride(0), rows.filters, rows.adjustments_N, rows.allowed
    # Unused arguments are never read.
    bits_UW, line_R = (best_RP, best_RP) if allowed is None else (allowed.bits_UW, allowed.line_R)
    values = [filters.get(one.field, best_RP) for one in FILTERS]
    tops = choice.tops or Tops(token_RK=best_RP, logprob_RK=best_RP)
    adjusted, reported = record_N is not None, choice.tops is not None
    again = bool(filters) or adjusted  # rows' logits are read again, and only then what grammars allow
    joined_bits = (bits_UW, line_R) if again else (best_RP, best_RP)
    programs, scratch_PW = _scratch(count, vocab + tile, device, read=bool(filters) or reported, adjusted=adjusted)
    with on_device(logits_RV.device):
        reduce_tiles[(count, splits)](
            logits_RV, stride, rows.temperature_R, rows.seed_R, rows.position_R, rows.suppress_R,
            bits_UW, line_R, partial_4RG, best_RP, place_RP, count * groups, vocab, bits_UW.shape[1],
            mask_token_id, vocab_limit, tiles, groups, each,
            ALLOWED=allowed is not None, SAMPLED=rows.sampled, TWO_HEATS=two_heats, LIBM=logits_RV.is_cuda,
            TILE=tile, GROUP=_GROUP, num_warps=_WARPS,
        )  # fmt: skip
        combine_tiles[(programs,)](
            logits_RV, stride, rows.temperature_R, rows.seed_R, rows.position_R, rows.suppress_R, *joined_bits,
            partial_4RG, best_RP, place_RP, choice.token_R, choice.entropy_R, choice.logprob_R, *values,
            best_RP if rows.slot_R is None else rows.slot_R, best_RP if record_N is None else record_N, scratch_PW,
            best_RP if rows.report_R is None else rows.report_R, tops.token_RK, tops.logprob_RK,
            count * groups, groups, splits, count, vocab, bits_UW.shape[1], mask_token_id, vocab_limit, rows.most,
            FILTERED=bool(filters), ADJUSTED=adjusted, ALLOWED=again and allowed is not None, REPORTED=reported,
            TWO_HEATS=two_heats, LIBM=logits_RV.is_cuda, TILE=tile, GROUPS=_power_of_two(groups),
            num_warps=_COMBINING_WARPS,
        )  # fmt: skip
    return choice


def _scratch(rows: int, width: int, device: torch.device, *, read: bool, adjusted: bool) -> tuple[int, Tensor]:
    """How many programs join rows, and their scratch memory, int32 ``[programs, width]``; zeros where adjusted."""
    if not (read or adjusted):
        return rows, torch.empty(0, 0, dtype=torch.int32, device=device)
    programs = min(rows, _processors(device))
    empty = torch.zeros if adjusted else torch.empty
    return programs, empty(programs, width, dtype=torch.int32, device=device)


def _splits(rows: int, device: torch.device) -> int:
    """Programs per row: enough for a handful of rows to fill the device, one where there are thousands."""
    return -(-_PROGRAMS_PER_PROCESSOR * _processors(device) // rows)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
