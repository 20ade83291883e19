"""Windows that have kernels around a forward, on a device that runs Triton: one launch packs, another one advances.

By tensor operations the same takes some 240 launches (:mod:`wedlm_core.engine.forward.window_work`), which tests
hold this equal to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.attention import DeviceRows
from wedlm_core.decoding.sampling import Choice
from wedlm_core.devices import on_device
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import WideRun
from wedlm_core.engine.forward.logits import PickedRows
from wedlm_core.engine.forward.outcome import COLUMN_OF, SHARE_OF
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.tops import top_words
from wedlm_core.engine.forward.window_work import Finished, Prepared, WindowWork
from wedlm_core.engine.scheduling.slots import IntArray

_BLOCK = 32  # rows of a program
_FEW = 64
_MOST_SLOTS, _MOST_PLACES = 1024, 1024  # which a program holds in its registers


@dataclass(frozen=True, kw_only=True)
class KernelsPrepared(Prepared):
    """See :class:`Prepared`; ``picks`` are all decode rows in the order of the rows.

    Attributes:
        slots_D: int64.
        first_D: int32, pick of each decoding sequence's head.
        width: places of any of their windows, before the forward and after it.
    """

    slots_D: Tensor
    first_D: Tensor
    width: int


class WindowsByKernels(WindowWork[KernelsPrepared]):
    """See :class:`WindowWork`; for runs that it takes."""

    @staticmethod
    def takes(state: DeviceState, runs: Sequence[WideRun]) -> bool:
        """Whether all windows have kernels, which hold all slots, and all places of a window, at once."""
        slots, places = state.windows.token_SL.shape
        return slots <= _MOST_SLOTS and places <= _MOST_PLACES and all(run.decoding.has_kernels for run in runs)

    def prepare(self, runner: Runner, facts_3S: Tensor, runs: tuple[WideRun, ...], shape: Shape) -> KernelsPrepared:
        """See :class:`WindowWork`."""
        from wedlm_core.kernels.gpu.step_gpu import pack_rows

        state, page, device = runner.state, runner.pool.page_size, runner.device
        sequences, decoding = facts_3S.shape[1], runs[-1].stop if runs else 0
        wanted, deepest = shape.wanted if runs else 0, -(-shape.max_kv // page)
        row_3T = torch.empty(3, shape.total, dtype=torch.int64, device=device)
        pick_3R = torch.empty(3, wanted, dtype=torch.int64, device=device)
        context_S = torch.empty(sequences, dtype=torch.int64, device=device)
        first_D = torch.empty(decoding, dtype=torch.int32, device=device)
        span_Z = torch.empty(2 * sequences + 1, dtype=torch.int32, device=device)
        cu_rows_Z, kv_lengths_S = span_Z[: sequences + 1], span_Z[sequences + 1 :]
        pages_SP = torch.empty(sequences, deepest, dtype=torch.int32, device=device)
        windows, tokens_SL, table_SP = state.windows, state.tokens_SL, state.device_pages_SP
        room = _room(sequences, state.context_S.shape[0])
        with on_device(device):
            pack_rows[(max(-(-shape.total // _BLOCK), sequences),)](
                facts_3S, facts_3S.stride(0), state.context_S, windows.length_S, windows.lead_S, windows.head_S,
                windows.token_SL, tokens_SL, table_SP, row_3T, pick_3R, context_S, first_D, cu_rows_Z, kv_lengths_S,
                pages_SP, sequences, decoding, shape.total, wanted, deepest, windows.token_SL.shape[1],
                tokens_SL.shape[1], table_SP.shape[1],
                PAGE=page, BLOCK=_BLOCK, SEQ_P=room, num_warps=4 if room <= 256 else 8,
            )  # fmt: skip
        rows = DeviceRows(
            cu_rows_Z=cu_rows_Z, kv_lengths_S=kv_lengths_S, pages_SP=pages_SP,
            max_rows=shape.max_rows, max_kv=shape.max_kv, total=shape.total,
        )  # fmt: skip
        row_R, slot_R, position_R = pick_3R
        picks = PickedRows(row_R=row_R, slot_R=slot_R, position_R=position_R)
        id_T, position_T, kv_entry_T = row_3T
        return KernelsPrepared(
            context_S=context_S,
            batch=DeviceBatch(id_T=id_T, position_T=position_T, kv_entry_T=kv_entry_T, rows=rows),
            picks=picks if runs else None,
            slots_D=facts_3S[0, :decoding],
            first_D=first_D,
            width=max((run.width for run in runs), default=0),
        )

    def finish(self, runner: Runner, made: KernelsPrepared, hidden_TD: Tensor, slots_S: IntArray) -> Finished:
        """See :class:`WindowWork`."""
        assert made.picks is not None
        choice = runner.choose.by_row(hidden_TD, made.picks, runner.state, slots_S)
        words_DX = advance(runner.state, made, choice)
        words, shapes = words_DX.flatten(), [(words_DX.shape[0], words_DX.shape[1])]
        if choice.tops is None:
            return Finished(words=words, shapes=shapes)
        row_DC = made.first_D[:, None] + torch.arange(made.width + 1, device=made.first_D.device)
        return Finished(words=torch.cat([words, top_words(choice.tops, row_DC)]), shapes=shapes)


def advance(state: DeviceState, made: KernelsPrepared, choice: Choice) -> Tensor:
    """Move the windows on; the words of the outcome, int32 ``[D, columns + shares (width + 1)]``."""
    from wedlm_core.kernels.gpu.step_gpu import advance_windows

    windows, params, tokens_SL = state.windows, state.params, state.tokens_SL
    width, places = min(made.width, windows.token_SL.shape[1]), windows.token_SL.shape[1]
    columns, shares = len(COLUMN_OF), len(SHARE_OF)
    room = _power(_power(width) + 1)  # as in work that is recorded: nothing is compiled while it is
    words_DX = torch.empty(
        made.slots_D.shape[0], columns + shares * (width + 1), dtype=torch.int32, device=tokens_SL.device
    )
    with on_device(tokens_SL.device):
        advance_windows[(made.slots_D.shape[0],)](
            made.slots_D, made.first_D, choice.token_R, choice.entropy_R, choice.logprob_R,
            windows.token_SL, windows.filled_SL, windows.length_S, windows.lead_S, windows.head_S, windows.emitted_S,
            windows.valid_S, params.masks_S, params.keep_valid_S, params.keep_stale_S, params.limit_S, params.stop_SK,
            tokens_SL, state.context_S, words_DX, width, places, tokens_SL.shape[1], state.mask_token_id,
            **{name.removesuffix("_D").upper(): place for name, place in COLUMN_OF.items()},
            **{name.removesuffix("_DC").upper(): place for name, place in SHARE_OF.items()},
            COLUMNS=columns, SHARES=shares, STOPS=params.stop_SK.shape[1], PLACES_P=room,
            num_warps=max(1, min(8, room // 128)),
        )  # fmt: skip
    return words_DX


def _room(sequences: int, slots: int) -> int:
    """Sequences of a program: one of two sizes, each with a compiled kernel."""
    return _FEW if sequences <= _FEW else _power(slots)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
