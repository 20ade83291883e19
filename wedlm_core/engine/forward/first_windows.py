"""The first windows of new sequences: how large they are.

They follow from a few numbers on the host, which so knows their rows without asking the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from wedlm_core.decoding.parameters import PARAMETERS
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.window_state import WindowParams, empty_windows
from wedlm_core.types import Request

_SIZES = 4096  # that are remembered
_OF = {p.field: p.of for p in PARAMETERS}
_READ = {p.field: p.dtype for p in PARAMETERS if p.field in ("entropy_threshold", "position_penalty", "max_tokens")}


class FirstWindows:
    """Sizes of first windows; none of their places is filled before.

    Args:
        decodings: by number.
        mask_token_id: the token of a mask.
        width: places of a window at most.
    """

    def __init__(self, decodings: Seq[Decoding], mask_token_id: int, width: int) -> None:
        self._decodings, self._mask, self._width = decodings, mask_token_id, width
        self._sizes: dict[tuple[float, ...], tuple[int, int]] = {}  # by all that they depend on

    def size(self, number: int, planned: Seq[int], request: Request) -> tuple[int, int]:
        """Places and filled ones of the first window of a request.

        Args:
            number: of its decoding.
            planned: masks of the next window of its slot, and the drafts that it keeps at most.
            request: whose parameters are read.
        """
        known = [_OF[name](request) for name in _READ]
        key = (number, *planned, *known)
        found = self._sizes.get(key)
        if found is None:
            fresh = empty_windows(1, self._width, torch.device("cpu"))
            own = zip(_READ.items(), known, strict=True)
            columns = {name: torch.tensor([value], dtype=kind) for (name, kind), value in own}
            no_stops_11 = torch.full((1, 1), -1, dtype=torch.int64)
            params = window_params(torch.tensor(planned, dtype=torch.int64)[:, None], columns, no_stops_11)
            self._decodings[number].refill(fresh, params, self._mask)
            if len(self._sizes) >= _SIZES:
                self._sizes.clear()
            found = self._sizes[key] = int(fresh.length_S.numpy()[0]), int(fresh.lead_S.numpy()[0])
        return found


def window_params(windows_3S: Tensor, columns: Mapping[str, Tensor], stops_SK: Tensor) -> WindowParams:
    """Parameters that strategies read: planned masks, drafts to keep, parameters by field, and stop tokens."""
    masks_S, keep_valid_S, keep_stale_S = windows_3S
    return WindowParams(
        masks_S=masks_S,
        keep_valid_S=keep_valid_S,
        keep_stale_S=keep_stale_S,
        threshold_S=columns["entropy_threshold"],
        penalty_S=columns["position_penalty"],
        limit_S=columns["max_tokens"],
        stop_SK=stops_SK,
    )
