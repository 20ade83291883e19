"""Writes what the windows of new sequences start with to the columns of their slots, in one pass.

A slot's first window is a few numbers in a dozen columns: as many operations on arrays take several times as long as a
small model's row of decode.
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["open_windows"]


@kernel
def open_windows(  # type: ignore[no-untyped-def]
    numbers, prompts, mask, token, filled, entropy, early, length, lead, head, emitted, valid, context, seed,
    suppress, suppresses, tokens
):  # fmt: skip
    """Write the first windows and the prompts of N new sequences.

    Args:
        numbers: int64 ``[N, 8]``: slot, places of the window, filled ones, head token or -1, tokens whose KV precedes
            the decode rows, seed, whether the mask id is never chosen, tokens of the prompt.
        prompts: int64, the prompts one after the other.
        mask: the mask id.
        token: int64 ``[slots, L]``, written as all that follow.
        filled: bool ``[slots, L]``.
        entropy: float32 ``[slots, L]``.
        early: bool ``[slots, L]``.
        length: int64 ``[slots]``, as the next three.
        lead: filled places.
        head: the head token.
        emitted: tokens of the output.
        valid: bool ``[slots]``.
        context: int64 ``[slots]``, as the next one.
        seed: of noise.
        suppress: bool ``[slots]``, as the next one, which the host reads.
        suppresses: likewise.
        tokens: int64 ``[slots, positions]``, the prompt at the beginning of a line.
    """
    at = 0
    for n in range(len(numbers)):
        slot = numbers[n, 0]
        token[slot, :] = mask
        filled[slot, :], entropy[slot, :], early[slot, :] = False, 0.0, False
        length[slot], lead[slot], head[slot] = numbers[n, 1], numbers[n, 2], numbers[n, 3]
        emitted[slot], valid[slot] = 0, True
        context[slot], seed[slot] = numbers[n, 4], numbers[n, 5]
        suppress[slot] = suppresses[slot] = numbers[n, 6] != 0
        for place in range(numbers[n, 7]):
            tokens[slot, place] = prompts[at + place]
        at += numbers[n, 7]
