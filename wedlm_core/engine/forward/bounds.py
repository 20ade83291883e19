"""What a decode forward can leave behind at most, known before it has run. Torch-free.

The host plans forward t + 1 while forward t is under way, so it plans with bounds: a forward of r decode rows makes
at most r tokens' KV final, and the window it leaves has at most :func:`next_rows` rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable

__all__ = ["Refills", "next_rows", "wanted_rows"]


@dataclass(frozen=True, kw_only=True)
class Refills:
    """How the windows of D sequences are refilled at the end of a forward, as it was when the forward was launched.

    Attributes:
        masks_D: masks of the window that follows.
        kept_D: drafts that it keeps at most.
        widest_D: masks of any window of the sequence.
        head_D: bool, the sequence keeps a head token.
        verified_D: bool, masks become drafts and every forward commits one token at least.
        clipped_D: bool, windows end at ``max_tokens``.
    """

    masks_D: IntArray
    kept_D: IntArray
    widest_D: IntArray
    head_D: BoolArray
    verified_D: BoolArray
    clipped_D: BoolArray

    @classmethod
    def of(cls, table: SlotTable, slots_D: IntArray, verified_G: BoolArray, clipped_G: BoolArray) -> Refills:
        """From the table, and from what is known of the decoding implementations by number."""
        groups_D = table.group[slots_D]
        return cls(
            masks_D=table.masks[slots_D],
            kept_D=np.maximum(table.keep_valid, table.keep_stale)[slots_D],
            widest_D=table.widest[slots_D],
            head_D=table.head[slots_D],
            verified_D=verified_G[groups_D],
            clipped_D=clipped_G[groups_D],
        )


def next_rows(refills: Refills, rows_D: IntArray, left_D: IntArray) -> IntArray:
    """Decode rows of the next forward at most.

    Args:
        refills: of the forward.
        rows_D: its decode rows, or a bound of them.
        left_D: tokens that each sequence may still generate before it, or a bound.

    Returns:
        int64; 0 where the forward surely ends the sequence.
    """
    slots_D = rows_D - refills.head_D
    # Verified: one slot at least goes to the committed token. Else what stays is at most what was masks before.
    kept_D = np.where(
        refills.verified_D,
        np.minimum(refills.kept_D, np.maximum(slots_D - 1, 0)),
        np.minimum(refills.widest_D, slots_D),
    )
    left_after_D = np.where(refills.clipped_D, left_D - refills.verified_D, np.iinfo(np.int64).max)
    after_D = np.minimum(refills.masks_D + kept_D, np.maximum(left_after_D, 0)) + refills.head_D
    return np.where(refills.verified_D & (left_after_D <= 0), 0, after_D)


def wanted_rows(refills: Refills, rows_D: IntArray) -> IntArray:
    """Rows of a forward that need logits, at most: all where masks are verified, else masks and one more."""
    return np.where(refills.verified_D, rows_D, np.minimum(rows_D, refills.widest_D + refills.head_D))
