"""What windows bring and take per forward in the long run, outputs' beginnings and ends included. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wedlm_core.engine.windows.output_lengths import OutputLengths
from wedlm_core.engine.windows.step_time import FloatArray
from wedlm_core.kernels.cpu.planning import add_ends, long_runs

__all__ = ["LongRun", "long_run"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """Expected commits and rows per forward, ``[S, W + 1]`` by number of masks; 0 masks is autoregressive.

    Attributes:
        kept_SW: int64, how many stale drafts to keep where so many masks are forwarded: all where none follow them.
        sure_SW: probability that valid drafts are all accepted and the next ones are valid; 0 without masks.
    """

    commits_SW: FloatArray
    rows_SW: FloatArray
    kept_SW: IntArray
    sure_SW: FloatArray

    def with_outputs(
        self, outputs: OutputLengths, *, forced_S: FloatArray | None = None, forced_row: float = 1.0
    ) -> LongRun:
        """Count that outputs begin and end, and what grammars force.

        Each output begins with a forward of masks alone, whose rows bring what one row brings. The last forward takes
        the drafts up to the end only, and has no masks where the end is among these. Outputs end anywhere in a window;
        at a known place where they are equally long and all drafts are right.

        Args:
            outputs: how long they are.
            forced_S: tokens that a grammar forces behind those of a forward, on average: a commit each, whatever the
                window.
            forced_row: what the row of such a token costs of one on which a token is chosen.
        """
        commits_SW, rows_SW = self.commits_SW.copy(), self.rows_SW.copy()
        forced_S = np.zeros(len(commits_SW)) if forced_S is None else forced_S
        add_ends(outputs.tokens, outputs.spread, forced_S, forced_row, commits_SW, rows_SW, self.sure_SW)
        return replace(self, commits_SW=commits_SW, rows_SW=rows_SW)

    def with_bounds(self) -> LongRun:
        """Count the rows that a forward is padded to, where the host launches it before it knows how many there are."""
        width = self.rows_SW.shape[1]
        bound_W = np.append(1.0, 2.0 * np.arange(1, width) + 1.0)  # the head, as many drafts as masks, the masks
        return replace(self, rows_SW=np.tile(bound_W, (len(self.rows_SW), 1)))


def long_run(valid_SW: FloatArray, stale_SW: FloatArray, agree_2S: FloatArray, row_price: float) -> LongRun:
    """Solve a two-state chain per sequence and window: the drafts of a forward are valid or stale.

    With w masks, valid drafts are the w - 1 proposals behind the one that the verifier decided. They stay valid when
    all are accepted and the next first mask agrees with the verifier; else what is left is stale. So a window that is
    too wide costs twice: rows, and stale forwards. Stale drafts may bring commits; but masks behind one that turns out
    wrong propose in vain, and the next drafts are stale as well. How many are kept is what pays best in the long run.

    Args:
        valid_SW: probability that valid drafts up to offset 1 .. W are all accepted.
        stale_SW: the same for stale ones.
        agree_2S: probability that the first mask agrees after all (stale, valid) drafts were accepted.
        row_price: commits that a row has to bring, by which numbers of stale drafts are compared.
    """
    count, width = valid_SW.shape
    commits_SW, rows_SW, sure_SW = np.empty((3, count, width + 1))
    kept_SW = np.empty((count, width + 1), dtype=np.int64)
    long_runs(valid_SW, stale_SW, agree_2S, row_price, commits_SW, rows_SW, kept_SW, sure_SW)
    return LongRun(commits_SW=commits_SW, rows_SW=rows_SW, kept_SW=kept_SW, sure_SW=sure_SW)
