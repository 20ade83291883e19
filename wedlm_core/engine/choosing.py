"""Logits and choices of the rows that are wanted, in chunks of bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.decoding.fused import chooser
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.engine.device import DeviceState
from wedlm_core.engine.slots import IntArray
from wedlm_core.model import Decoder

__all__ = ["Chooser", "Picks"]


@dataclass(frozen=True, kw_only=True)
class Picks:
    """R rows that need logits, all int64.

    Attributes:
        row_R: row of the forward.
        flat_R: place of the result in the flat layout of all groups.
        slot_R: engine slot of the row's sequence.
        position_R: absolute position of the token that is chosen.
        places: length of the flat layout; a pick that is only padding has its result put behind it.
        filtered: picks of sequences with top-k or top-p at most; None where only the device knows.
    """

    row_R: Tensor
    flat_R: Tensor
    slot_R: Tensor
    position_R: Tensor
    places: int
    filtered: int | None = None


class Chooser:
    """From hidden states to choices.

    Args:
        model: for its output head.
        chunk_rows: rows of logits at once at most.
        quantum: row counts are padded to a multiple of it.
        mask_token_id: id that suppressing rows never choose.
        vocab_limit: ids from here on are vocabulary padding.
        compiled: whether the compiled CPU kernel chooses.
    """

    def __init__(
        self, model: Decoder, *, chunk_rows: int, quantum: int, mask_token_id: int, vocab_limit: int, compiled: bool
    ) -> None:
        self._model, self._quantum = model, quantum
        self._choose = chooser(model.embed.weight.device, compiled=compiled)
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
        sampled, top_k, top_p = np.any(state.sampled[slots_S], axis=0).tolist()
        suppressing, params = bool(state.suppresses[slots_S].any()), state.params
        for start in range(0, picks.row_R.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            rows, slots, flat_R = picks.row_R[part], picks.slot_R[part], picks.flat_R[part]
            padded = F.pad(rows, (0, -rows.shape[0] % self._quantum))
            logits_RV = self._model.lm_head(hidden_TD.index_select(0, padded))[: rows.shape[0]]
            inputs = SamplingRows(
                temperature_R=params.temperature_S[slots],
                top_k_R=params.top_k_S[slots],
                top_p_R=params.top_p_S[slots],
                seed_R=params.seed_S[slots],
                position_R=picks.position_R[part],
                suppress_R=state.suppress_S[slots],
                sampled=sampled,
                filtered_k=top_k,
                filtered_p=top_p,
                suppressing=suppressing,
                filtered_rows=picks.filtered,
            )
            choice = self._choose(logits_RV, inputs, **self._limits)
            token_F[flat_R] = choice.token_R
            entropy_F[flat_R] = choice.entropy_R
            logprob_F[flat_R] = choice.logprob_R
        return Choice(token_R=token_F, entropy_R=entropy_F, logprob_R=logprob_F)
