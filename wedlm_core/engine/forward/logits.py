"""Logits and choices of the rows that are wanted, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.decoding.sampling_gpu import chooser
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.model.products import RowPadding

__all__ = ["Chooser", "PickedRows", "Picks"]


@dataclass(frozen=True, kw_only=True)
class PickedRows:
    """R rows that need logits, all int64.

    Attributes:
        row_R: row of the forward.
        slot_R: engine slot of the row's sequence.
        position_R: absolute position of the token that is chosen.
        filtered: picks of sequences with filters at most; None where only the device knows.
    """

    row_R: Tensor
    slot_R: Tensor
    position_R: Tensor
    filtered: int | None = None


@dataclass(frozen=True, kw_only=True)
class Picks(PickedRows):
    """Rows that need logits, and where in the flat layout of all groups their results go.

    Attributes:
        flat_R: place of the result in the flat layout.
        places: length of the flat layout; a pick that is only padding has its result put behind it.
    """

    flat_R: Tensor
    places: int


class Chooser:
    """From hidden states to choices.

    Args:
        device: of the head.
        head: hidden states to logits.
        chunk_rows: rows of logits at once at most.
        padding: of the rows of a chunk.
        mask_token_id: id that suppressing rows never choose.
        vocab_limit: ids from here on are vocabulary padding.
        cpu_kernels: whether the CPU kernel chooses.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        head: Callable[[Tensor], Tensor],
        chunk_rows: int,
        padding: RowPadding,
        mask_token_id: int,
        vocab_limit: int,
        cpu_kernels: bool,
    ) -> None:
        self._head, self._padding = head, padding
        self._choose = chooser(device, cpu_kernels=cpu_kernels)
        self._chunk = chunk_rows
        self._limits = {"mask_token_id": mask_token_id, "vocab_limit": vocab_limit}

    def __call__(self, hidden_TD: Tensor, picks: Picks, state: DeviceState, slots_S: IntArray) -> Choice:
        """Choices of the picked rows, spread over the flat layout (zero elsewhere).

        Args:
            hidden_TD: hidden states of the forward.
            picks: rows that need logits.
            state: sampling parameters.
            slots_S: the forward's slots, on the host: they tell which stages of sampling are needed at all.
        """
        device, places = hidden_TD.device, picks.places + 1
        token_F = torch.zeros(places, dtype=torch.int64, device=device)
        entropy_F = torch.zeros(places, device=device)
        logprob_F = torch.zeros(places, device=device)
        for part, choice in self._chunks(hidden_TD, picks, state, slots_S):
            flat_R = picks.flat_R[part]
            token_F[flat_R] = choice.token_R
            entropy_F[flat_R] = choice.entropy_R
            logprob_F[flat_R] = choice.logprob_R
        return Choice(token_R=token_F, entropy_R=entropy_F, logprob_R=logprob_F)

    def by_row(self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray) -> Choice:
        """Choices of the picked rows, one of them at least, in their order; arguments as for a call."""
        choices = [choice for _, choice in self._chunks(hidden_TD, picks, state, slots_S)]
        if len(choices) == 1:
            return choices[0]
        return Choice(**{f.name: join_tensors([getattr(c, f.name) for c in choices]) for f in fields(Choice)})

    def _chunks(
        self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray
    ) -> Iterator[tuple[slice, Choice]]:
        """Chunks of the picks, and what is chosen on them."""
        sampled, suppressing = bool(state.sampled[slots_S].any()), bool(state.suppresses[slots_S].any())
        filters = [FILTERS[i].field for i in np.flatnonzero(state.filtered[slots_S].any(axis=0))]
        for start in range(0, picks.row_R.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            rows, slots = picks.row_R[part], picks.slot_R[part]
            padded = F.pad(rows, (0, self._padding(rows.shape[0]) - rows.shape[0]))
            logits_RV = self._head(hidden_TD.index_select(0, padded))[: rows.shape[0]]
            inputs = SamplingRows(
                temperature_R=state.columns["temperature"].index_select(0, slots),
                seed_R=state.columns["seed"].index_select(0, slots),
                position_R=picks.position_R[part],
                suppress_R=state.suppress_S.index_select(0, slots),
                filters={name: state.columns[name].index_select(0, slots) for name in filters},
                sampled=sampled,
                suppressing=suppressing,
                filtered_rows=picks.filtered,
            )
            yield part, self._choose(logits_RV, inputs, **self._limits)
