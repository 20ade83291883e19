"""Makes slots ready for new sequences: each kernel writes a dozen columns of them in one pass.

As many operations on arrays take several times as long: a slot has a few numbers in each column.
"""

from __future__ import annotations

from wedlm_core.kernels.cpu.compiled import kernel


@kernel
def clear_slot(slot, integers, flags, source, stop_ids, output, logprob, counts, nats, emitted):  # type: ignore[no-untyped-def]
    """Reset the host's values of a slot.

    Args:
        slot: its number.
        integers: int64 ``[columns, slots]``, set to 0 as all others but the stop tokens.
        flags: bool ``[columns, slots]``.
        source: int8 ``[slots, places]``.
        stop_ids: int64 ``[slots, K]``, set to -1.
        output: int32 ``[slots, N]``.
        logprob: float32 ``[slots, N]``.
        counts: int64 ``[COUNTS, slots]``.
        nats: float64 ``[NATS, slots]``.
        emitted: int64 ``[slots, places]``.
    """
    integers[:, slot], flags[:, slot], source[slot, :], stop_ids[slot, :] = 0, False, 0, -1
    output[slot, :], logprob[slot, :] = 0, 0.0
    counts[:, slot], nats[:, slot], emitted[slot, :] = 0, 0.0, 0


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
