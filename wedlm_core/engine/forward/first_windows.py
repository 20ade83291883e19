"""The first windows of new sequences: how large they are, and how they come to the columns of their slots.

They are made on the host, which so knows their rows without asking the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.parameters import PARAMETERS
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.window_state import Window, WindowParams, empty_windows
from wedlm_core.engine.forward.transfer import put, put_line
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray
from wedlm_core.kernels.cpu.opening_kernels import open_windows
from wedlm_core.types import Request

_SIZES = 4096  # that are remembered
_OF = {p.field: p.of for p in PARAMETERS}
(_OWN,) = (p for p in PARAMETERS if p.own)  # int64; the other parameters are written where they change
_SLOT, _LENGTH, _LEAD, _HEAD, _CONTEXT, _SEED, _SUPPRESSES, _PROMPT = range(8)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the first windows of slots are written; none of these is ever replaced.

    Attributes:
        windows: the decoding state.
        context_S: int64, tokens whose KV precedes the decode rows.
        seed_S: int64, the parameter that each request has of its own.
        suppress_S: bool, slots that never choose the mask id.
        suppresses: the same on the host, bool ``[S]``.
        tokens_SL: int64, prompts by position.
    """

    windows: Window
    context_S: Tensor
    seed_S: Tensor
    suppress_S: Tensor
    suppresses: BoolArray
    tokens_SL: Tensor


class FirstWindows:
    """Opens slots.

    Args:
        decodings: by number.
        mask_token_id: the token of a mask.
        windows_3S: int64, masks of the next window of each slot, and the drafts that it keeps at most; on the host.
        columns: parameters by field.
        places: where windows are written.
    """

    def __init__(
        self,
        decodings: Seq[Decoding],
        mask_token_id: int,
        windows_3S: IntArray,
        columns: Mapping[str, Tensor],
        places: Places,
    ) -> None:
        self._decodings, self._mask, self._windows_3S = decodings, mask_token_id, windows_3S
        self._facts = [(one.head, one.suppresses) for one in decodings]
        self._kinds = {name: columns[name].dtype for name in ("entropy_threshold", "position_penalty", "max_tokens")}
        self._sizes: dict[tuple[float, ...], tuple[int, int]] = {}  # by all that they depend on
        self._places = places
        self._width = places.windows.token_SL.shape[1]
        self._arrays: list[np.ndarray] | None = None
        if places.context_S.device.type == "cpu":
            self._arrays = _arrays_of(places)

    def open(self, requests: Seq[Request], slots: Seq[int], groups: Seq[int]) -> IntArray:
        """Write the first windows, the prompts and each request's own parameter.

        Args:
            requests: of new sequences.
            slots: of each.
            groups: number of the decoding of each.

        Returns:
            int64 per request: decode rows of its first decode forward.
        """
        planned_S = self._windows_3S[:, slots].T.tolist()
        lines, rows, prompts = [], [], []
        for request, slot, number, planned in zip(requests, slots, groups, planned_S, strict=True):
            prompt, (has_head, suppresses) = request.prompt_token_ids, self._facts[number]
            length, lead = self._size(number, planned, request)
            head = prompt[-1] if has_head else -1
            context, seed = len(prompt) - has_head, _OWN.of(request)
            lines.append((slot, length, lead, head, context, seed, suppresses, len(prompt)))
            rows.append(length + has_head)
            prompts.append(prompt)
        numbers = np.array(lines, dtype=np.int64)
        if self._arrays is None:
            _write_by_copies(self._places, self._mask, numbers, prompts)
        else:
            tokens = np.array([*itertools.chain.from_iterable(prompts)], dtype=np.int64)
            open_windows(numbers, tokens, self._mask, *self._arrays)
        return np.array(rows, dtype=np.int64)

    def _size(self, number: int, planned: Seq[int], request: Request) -> tuple[int, int]:
        """Places and filled ones of a first window: none is filled before, so all follows from few numbers."""
        known = [_OF[name](request) for name in self._kinds]
        key = (number, *planned, *known)
        found = self._sizes.get(key)
        if found is None:
            fresh = empty_windows(1, self._width, torch.device("cpu"))
            own = zip(self._kinds.items(), known, strict=True)
            columns = {name: torch.tensor([value], dtype=kind) for (name, kind), value in own}
            no_stops_11 = torch.full((1, 1), -1, dtype=torch.int64)
            params = window_params(torch.tensor(planned, dtype=torch.int64)[:, None], columns, no_stops_11)
            self._decodings[number].refill(fresh, params, self._mask)
            if len(self._sizes) >= _SIZES:
                self._sizes.clear()
            found = self._sizes[key] = int(fresh.length_S.numpy()[0]), int(fresh.lead_S.numpy()[0])
        return found


def _arrays_of(places: Places) -> list[np.ndarray]:
    """The memory that :func:`wedlm_core.kernels.cpu.opening_kernels.open_windows` writes, in its order."""
    windows = [getattr(places.windows, field.name).numpy() for field in fields(Window)]
    numbers = places.context_S.numpy(), places.seed_S.numpy(), places.suppress_S.numpy(), places.suppresses
    return [*windows, *numbers, places.tokens_SL.numpy()]


def _write_by_copies(places: Places, mask: int, numbers: IntArray, prompts: Seq[Seq[int]]) -> None:
    """:func:`wedlm_core.kernels.cpu.opening_kernels.open_windows` on any device; ``numbers`` as there."""
    slots_S, windows = numbers[:, _SLOT].copy(), places.windows
    suppresses = numbers[:, _SUPPRESSES] != 0
    for column, values in (
        (windows.token_SL, np.full(1, mask)),
        (windows.filled_SL, np.zeros(1, dtype=np.bool_)),
        (windows.entropy_SL, np.zeros(1, dtype=np.float32)),
        (windows.early_SL, np.zeros(1, dtype=np.bool_)),
        (windows.length_S, numbers[:, _LENGTH]),
        (windows.lead_S, numbers[:, _LEAD]),
        (windows.head_S, numbers[:, _HEAD]),
        (windows.emitted_S, np.zeros(1, dtype=np.int64)),
        (windows.valid_S, np.ones(1, dtype=np.bool_)),
        (places.context_S, numbers[:, _CONTEXT]),
        (places.seed_S, numbers[:, _SEED]),
        (places.suppress_S, suppresses),
    ):
        put(column, slots_S, values)
    places.suppresses[slots_S] = suppresses
    for slot, prompt in zip(slots_S.tolist(), prompts, strict=True):
        put_line(places.tokens_SL, slot, np.array(prompt, dtype=np.int64))


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
