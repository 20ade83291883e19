"""From logits to a token, its entropy and its log-probability: a deterministic function of (row, seed, position).

The rule is the oracle's, ``testing.engine.sampling_oracle.choose``; :mod:`.sampling_cpu` and :mod:`.sampling_gpu` are
the forms of it. A row's choice does not depend on the other rows (docs/design/batch-invariance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import FREE, AllowedRows, only


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """Per-row sampling inputs, all ``[R]``.

    Attributes:
        temperature_R: float32; 0 is greedy.
        seed_R: int64, the seed of the row's sequence.
        position_R: int64, the absolute position of the token being chosen.
        suppress_R: bool, rows that may never choose the mask id or padded vocabulary.
        filters: of each filter, the values of all rows (:data:`wedlm_core.decoding.filters.FILTERS`); empty where no
            row uses any.
        adjustments_N: int64, the record of adjustments (:func:`wedlm_core.decoding.adjustments.adjustments_record`), on
            the same device; None where no row uses any.
        slot_R: int64, the engine slots of the rows; None without adjustments.
        report_R: int64, 0 for rows that do not report their most likely tokens; None where no row does.
        most: tokens that rows report at most.
        allowed: the tokens that a grammar lets the same rows choose; None where no row has a grammar. Rows with
            ``suppress_R`` have none.
        sampled, suppressing: whether any row needs that stage (known on the host, so that the stage is skipped
            without looking at the device).
    """

    temperature_R: Tensor
    seed_R: Tensor
    position_R: Tensor
    suppress_R: Tensor
    filters: Mapping[str, Tensor] = field(default_factory=dict)
    adjustments_N: Tensor | None = None
    slot_R: Tensor | None = None
    report_R: Tensor | None = None
    most: int = 0
    allowed: AllowedRows | None = None
    sampled: bool
    suppressing: bool

    def take(self, index_N: Tensor) -> SamplingRows:
        """The rows of ``index_N`` (int64)."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_R")}
        tensors = {name: tensor for name, tensor in named.items() if tensor is not None}
        return replace(
            self,
            **{name: tensor.index_select(0, index_N) for name, tensor in tensors.items()},
            filters={name: value_R.index_select(0, index_N) for name, value_R in self.filters.items()},
            allowed=None if self.allowed is None else self.allowed.take(index_N),
        )


@dataclass(frozen=True, kw_only=True)
class Tops:
    """The K most likely tokens of R rows, most likely first, and their log-probabilities in nats.

    Equally likely ones stand by their ids. Rows that report none have zeros.

    Attributes:
        token_RK: int64.
        logprob_RK: float32; -inf where no token has any probability, as after one that is the only choice.
    """

    token_RK: Tensor
    logprob_RK: Tensor

    @classmethod
    def new(cls, make: Callable[..., Tensor], rows: int, most: int, device: torch.device) -> Self:
        """Tokens of ``rows`` rows, ``most`` each; ``make``: ``torch.empty`` or ``torch.zeros``."""
        return cls(
            token_RK=make(rows, most, dtype=torch.int64, device=device), logprob_RK=make(rows, most, device=device)
        )

    def restricted(self, line_R: Tensor) -> Tops:
        """These, and of rows that may choose one token alone that token alone.

        Args:
            line_R: int64, the tokens that rows may choose (``AllowedRows.line_R``).
        """
        certain_R1 = (line_R < FREE)[:, None]
        logprob_RK = self.logprob_RK.masked_fill(certain_R1, -torch.inf)
        logprob_RK[:, 0].masked_fill_(certain_R1[:, 0], 0.0)
        return Tops(token_RK=torch.where(certain_R1, only(line_R)[:, None], self.token_RK), logprob_RK=logprob_RK)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Per row ``[R]``: token (int64), entropy of the distribution it was taken from and its log-probability (nats).

    Both are of the raw logits at temperature 1 (docs/design/decoding.md). Rows with ``suppress_R`` leave
    the suppressed ids out; where such a row samples, its entropy is of the distribution that is sampled from.
    ``tops`` are the most likely tokens of the same distribution; None where no row reports any.
    """

    token_R: Tensor
    entropy_R: Tensor
    logprob_R: Tensor
    tops: Tops | None = None

    @classmethod
    def new(cls, make: Callable[..., Tensor], rows: int, most: int, device: torch.device) -> Self:
        """Choices of ``rows`` rows, ``most`` likely tokens each; ``make``: ``torch.empty`` or ``torch.zeros``."""
        return cls(
            token_R=make(rows, dtype=torch.int64, device=device),
            entropy_R=make(rows, device=device),
            logprob_R=make(rows, device=device),
            tops=Tops.new(make, rows, most, device) if most else None,
        )

    def put(self, place_N: Tensor | slice, other: Self) -> None:
        """Write the rows of ``other`` to these places, different ones but for a place that is never read."""
        for name in ("token_R", "entropy_R", "logprob_R"):
            getattr(self, name)[place_N] = getattr(other, name)
        if self.tops is not None and other.tops is not None:
            self.tops.token_RK[place_N] = other.tops.token_RK
            self.tops.logprob_RK[place_N] = other.tops.logprob_RK
