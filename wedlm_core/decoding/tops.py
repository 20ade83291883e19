"""The most likely tokens of rows (``logprobs=k``): of the model's own distribution, for rows that report them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import FREE, only


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
