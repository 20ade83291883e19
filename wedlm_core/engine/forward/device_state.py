"""State of each slot on the device: windows, parameters, tokens and page tables."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.adjustments import ADJUSTMENTS, LISTS, AdjustmentTables, adjustments_record
from wedlm_core.decoding.allowed_tokens import AllowedTokens
from wedlm_core.decoding.parameters import LIST_FIELDS, OPTIONAL, PARAMETERS
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.window_state import empty_windows
from wedlm_core.engine.forward.first_windows import FirstWindows, window_params
from wedlm_core.engine.forward.slot_lists import SlotLists
from wedlm_core.engine.forward.transfer import get, put, put_line, to_device
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable
from wedlm_core.kernels.cpu.draft_kernels import Windows
from wedlm_core.model.draw import SlotColumns
from wedlm_core.types import Request, SamplingParams

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32}
_STOP_IDS = 16  # stop tokens of a sequence that the device knows (to clip windows); the host tests all
_PARTS = {"min_tokens": ("stop_ids",), "suppress_tokens": ("suppressed",), "logit_bias": ("bias_ids", "bias_values"),
          "bad_words": ("bad_words",)}  # fmt: skip
_PLACE_OF = {one.field: place for place, one in enumerate(OPTIONAL)}
_ADJUSTS = np.array([one in ADJUSTMENTS for one in OPTIONAL])
_WRITTEN = attrgetter(*(p.field for p in PARAMETERS if not p.own), *sorted(LIST_FIELDS), "top_logprobs")
"""The parameters in the columns and lists of a slot."""
_READS_HISTORY = np.array([one in ADJUSTMENTS and one.reads_history for one in OPTIONAL])


class _Set(NamedTuple):
    """Parameters of a slot's last sequence, :data:`_WRITTEN` of them, and its stop ids."""

    params: SamplingParams
    written: tuple[Any, ...]
    stop_ids: Seq[int]


class DeviceState:
    """Tensors by slot, and a few host arrays with the needs of a group of slots.

    Attributes:
        windows: the decoding state.
        columns: values of the requests, by field of ``SamplingParams`` (:data:`PARAMETERS`); off where not used.
        params: those columns that strategies know, with the windows and stop tokens.
        tokens_SL: int64, prompt and committed tokens by position; prefill rows are read from it; the last place of a
            row is never read (values to discard are written there). Where penalties or bad words read it, the drafts of
            a forward stand after them (:meth:`note_drafts`).
        adjustments: inputs of the adjustments of each slot.
        adjustments_N: int64 on the device, where that is (:func:`wedlm_core.decoding.adjustments.adjustments_record`).
            Recorded work reads it there, so it finds lists that have grown and lie elsewhere.
        context_S: int64, tokens whose KV precedes the next decode rows; kept where forwards are launched on the device.
        pages_SP: int64 page tables, on the host; ``device_pages_SP`` int32, their copy on the device.
        uses: host bool ``[S, 2 + O]``, the stages of choosing a slot's tokens; ``sampled``, ``suppresses`` and
            ``optional`` are views of it.
        sampled: host bool ``[S]``, slots with a temperature.
        optional: host bool ``[S, O]``, which of :data:`OPTIONAL` a slot uses: filters and adjustments.
        tops: host int64 ``[S]``, how many of the most likely tokens a slot reports; ``tops_S`` on the device.
        reads_history: host bool ``[S]``, slots with adjustments that read drafts (:meth:`note_drafts`).
        suppresses: host bool ``[S]``, slots that never choose the mask id; ``suppress_S`` on the device.
        allowed: gives the tokens that grammars allow in the rows of the next forward; None where no row has a grammar.
    """

    def __init__(
        self,
        config: EngineConfig,
        decodings: Seq[Decoding],
        mask_token_id: int,
        max_positions: int,
        device: torch.device,
    ) -> None:
        self.device, self.decodings, self.mask_token_id = device, decodings, mask_token_id
        slots, table_pages = config.max_num_seqs, -(-max_positions // config.page_size)
        self.windows = windows = empty_windows(slots, 2 * config.max_window, device)
        self._window_parts = windows.token_SL, windows.filled_SL, windows.lead_S, windows.length_S
        self._window_arrays: list[np.ndarray] | None = None
        if device.type == "cpu":
            self._window_arrays = [part.numpy() for part in self._window_parts]
        self.tokens_SL = torch.zeros(slots, max_positions + 1, dtype=torch.int64, device=device)
        self.context_S = torch.zeros(slots, dtype=torch.int64, device=device)
        self.pages_SP = torch.zeros(slots, table_pages, dtype=torch.int64)
        self._pages_SP = self.pages_SP.numpy()
        self.device_pages_SP = torch.zeros(slots, table_pages, dtype=torch.int32, device=device)
        self._moved_pages: set[int] = set()
        self._adjusted = np.zeros(slots, dtype=np.bool_)
        self._windows_3S = torch.zeros(3, slots, dtype=torch.int64, device=device)
        self._host_windows_3S: IntArray = np.zeros((3, slots), dtype=np.int64)
        if device.type == "cpu":
            self._windows_3S = torch.from_numpy(self._host_windows_3S)
        self.uses = np.zeros((slots, 2 + len(OPTIONAL)), dtype=np.bool_)
        self.sampled, self.suppresses, self.optional = self.uses[:, 0], self.uses[:, 1], self.uses[:, 2:]
        self.reads_history = np.zeros(slots, dtype=np.bool_)
        self.tops = np.zeros(slots, dtype=np.int64)
        self.tops_S = torch.zeros(slots, dtype=torch.int64, device=device)
        self._set: list[_Set | None] = [None] * slots  # the last parameters written to each
        self.allowed: Callable[[], AllowedTokens] | None = None
        self.suppress_S = torch.zeros(slots, dtype=torch.bool, device=device)
        self.columns = {p.field: torch.full((slots,), p.unused, dtype=p.dtype, device=device) for p in PARAMETERS}
        self.slot_columns = SlotColumns(
            **{f"{name}_S": self.columns[name] for name in ("temperature", "min_p", "top_k", "top_p", "seed")},
            suppress_S=self.suppress_S,
            tops_S=self.tops_S,
        )
        self._lists = {
            name: SlotLists(slots, {part: LISTS[part] for part in parts}, device) for name, parts in _PARTS.items()
        }
        self.adjustments = AdjustmentTables(
            columns=self.columns,
            lists=ChainMap(*(lists.parts for lists in self._lists.values())),
            uses_S=torch.zeros(slots, dtype=torch.bool, device=device),
            prompt_S=torch.zeros(slots, dtype=torch.int64, device=device),
            known_S=torch.zeros(slots, dtype=torch.int64, device=device),
            tokens_SL=self.tokens_SL,
        )
        self._host_record: IntArray = adjustments_record(self.adjustments).view(np.int64)
        self.adjustments_N = to_device(self._host_record.copy(), device)
        stops_SK = torch.full((slots, _STOP_IDS), -1, dtype=torch.int64, device=device)
        self.params = window_params(self._windows_3S, self.columns, stops_SK)
        self._first_windows = FirstWindows(decodings, mask_token_id, 2 * config.max_window)

    def set_pages(self, slot: int, pages: Seq[int]) -> None:
        """Write a slot's page table (called when its pages change).

        Entries after the last page are masked where they are read, but 0 * NaN is NaN: they name a page of the slot,
        never one that another sequence writes.
        """
        own_P = self._pages_SP[slot]
        if pages:
            own_P[len(pages) :] = pages[0]
        own_P[: len(pages)] = pages
        self._moved_pages.add(slot)

    def push_pages(self, slots: Iterable[int] = ()) -> None:
        """Bring page tables that changed since the last call, and those of ``slots``, to the device."""
        moved = sorted(self._moved_pages.union(slots))
        self._moved_pages.clear()
        if moved:
            slots_M = torch.tensor(moved)
            tables_MP = self.pages_SP[slots_M].to(torch.int32)
            self.device_pages_SP.index_copy_(0, to_device(slots_M, self.device), to_device(tables_MP, self.device))

    def adjusts_any(self, slots_S: IntArray) -> bool:
        """Whether any slot uses an adjustment."""
        return bool(self._adjusted[slots_S].any())

    def adjusts(self, slot_R: Tensor) -> Tensor:
        """Bool ``[R]``: rows of slots (int64) that use an adjustment; on a CPU."""
        return torch.from_numpy(self._adjusted[slot_R.numpy()])

    def allowed_tokens(self) -> AllowedTokens | None:
        """The tokens that grammars allow in this forward; waits for them. None where no row has a grammar."""
        return None if self.allowed is None else self.allowed()

    def set_drafts(self, slots_G: IntArray, token_GL: IntArray, lead_G: IntArray, length_G: IntArray) -> None:
        """Replace the windows of slots whose forward has completed, and which none is in flight for.

        Args:
            slots_G: different slots.
            token_GL: drafts, and after them the mask id.
            lead_G: drafts of each.
            length_G: drafts and masks of each.
        """
        windows = self.windows
        put(windows.token_SL, slots_G, token_GL)
        put(windows.filled_SL, slots_G, np.arange(token_GL.shape[1]) < lead_G[:, None])
        put(windows.lead_S, slots_G, lead_G)
        put(windows.length_S, slots_G, length_G)

    def empty_windows(self, slots_G: IntArray) -> None:
        """Reduce the windows of slots to their heads, as :meth:`set_drafts` does with drafts."""
        masks_GL = np.full((len(slots_G), self.windows.token_SL.shape[1]), self.mask_token_id, dtype=np.int64)
        none_G = np.zeros(len(slots_G), dtype=np.int64)
        self.set_drafts(slots_G, masks_GL, none_G, none_G)

    def windows_of(self, slots_D: IntArray) -> Windows:
        """Windows of these slots, to be changed: on a CPU those of all slots as they are; else waits for the device."""
        if self._window_arrays is not None:
            return Windows(slots_D, *self._window_arrays)
        return Windows(np.arange(len(slots_D)), *(get(part, slots_D) for part in self._window_parts))

    def set_windows_of(self, slots_D: IntArray, windows: Windows) -> None:
        """Copy the result of :meth:`windows_of` to the device; none of these slots has a forward in flight."""
        if self.device.type != "cpu":
            self.set_drafts(slots_D, windows.token, windows.lead, windows.length)

    def note_drafts(self, slots_D: IntArray, context_D: IntArray | Tensor) -> None:
        """Put the drafts of the next forward after the committed tokens, where its rows' adjustments look for them.

        Only of sequences that use such an adjustment; all of these keep a head and have their drafts in order.

        Args:
            slots_D: decoding sequences.
            context_D: tokens whose KV precedes their decode rows; a tensor where only the device knows.
        """
        readers = np.flatnonzero(self.reads_history[slots_D])
        if not len(readers):
            return
        slots_H = to_device(slots_D[readers], self.device)
        if isinstance(context_D, Tensor):
            context_H = context_D.index_select(0, to_device(readers, self.device))
        else:
            context_H = to_device(context_D[readers], self.device)
        window = self.windows.gather(slots_H, self.windows.token_SL.shape[1])
        place_L = torch.arange(window.token_SL.shape[1], device=self.device)
        at_HL = torch.where(
            place_L < window.lead_S[:, None], context_H[:, None] + 1 + place_L, self.tokens_SL.shape[1] - 1
        )
        self.tokens_SL[slots_H[:, None], at_HL] = window.token_SL
        self.adjustments.known_S.index_copy_(0, slots_H, context_H + 1 + window.lead_S)

    def set_windows(self, table: SlotTable) -> None:
        """Copy the windows of all slots to the device; they take effect when windows are refilled."""
        for line, values in enumerate((table.masks, table.keep_valid, table.keep_stale)):
            self._host_windows_3S[line] = values
        if self._windows_3S.device.type != "cpu":  # there it is the same memory
            self._windows_3S.copy_(to_device(self._host_windows_3S.copy(), self.device))

    def setup(
        self,
        requests: Seq[Request],
        slots: Seq[int],
        groups: Seq[int],
        stop_ids: Seq[Seq[int]],
        bad_words: Seq[Seq[Seq[int]]] = (),
    ) -> IntArray:
        """Give new sequences their slots: parameters, prompt and first window (:meth:`set_windows` goes before).

        Args:
            requests: of the sequences.
            slots: of each.
            groups: number of the decoding of each.
            stop_ids: stop tokens of each.
            bad_words: the token ids of each one's bad words; empty where none has any.

        Returns:
            int64 per request: decode rows of its first decode forward.
        """
        words = bad_words or [()] * len(slots)
        own = zip(requests, slots, stop_ids, words, strict=True)
        changed = [one for one in own if not self._is_set(*one[:3])]
        if changed:
            changed_requests, changed_slots, ids, changed_words = zip(*changed, strict=True)
            self._set_params(changed_requests, np.array(changed_slots, dtype=np.int64), ids)
            self._set_adjustments(changed_requests, changed_slots, ids, changed_words)
            for request, slot, own_ids, _ in changed:
                self._set[slot] = _Set(request.params, _WRITTEN(request.params), own_ids)
        return self._open_windows(requests, slots, groups)

    def _open_windows(self, requests: Seq[Request], slots: Seq[int], groups: Seq[int]) -> IntArray:
        """Write the first windows, the prompts and each request's own parameter; the rows of each."""
        planned_S = self._host_windows_3S[:, slots].T.tolist()
        lines, windows, slots_S = [], self.windows, np.array(slots, dtype=np.int64)
        for request, slot, number, planned in zip(requests, slots, groups, planned_S, strict=True):
            prompt, decoding = request.prompt_token_ids, self.decodings[number]
            length, lead = self._first_windows.size(number, planned, request)
            head = prompt[-1] if decoding.head else -1
            context = len(prompt) - decoding.head
            lines.append((length, lead, head, context, request.seed, decoding.suppresses, length + decoding.head))
            put_line(self.tokens_SL, slot, np.array(prompt, dtype=np.int64))
        *columns_5S, suppresses_S, rows_S = np.array(lines, dtype=np.int64).T
        self.suppresses[slots_S] = suppresses_S
        own = windows.length_S, windows.lead_S, windows.head_S, self.context_S, self.columns["seed"]
        for column, values_S in zip(own, columns_5S, strict=True):
            put(column, slots_S, values_S)
        put(self.suppress_S, slots_S, suppresses_S != 0)
        for column, value in (
            (windows.token_SL, self.mask_token_id), (windows.filled_SL, False), (windows.entropy_SL, 0.0),
            (windows.early_SL, False), (windows.emitted_S, 0), (windows.valid_S, True),
        ):  # fmt: skip
            put(column, slots_S, value)
        return rows_S

    def _is_set(self, request: Request, slot: int, stop_ids: Seq[int]) -> bool:
        """Whether the parameters of a slot's new sequence are written already, as that before it had them.

        Most sequences of a slot have the parameters of the one before: rows of a job share theirs, or differ only in
        fields that the host reads, such as a grammar. While they are written the slot counts as unknown: after an
        interruption, no sequence is taken for one with the slot's parameters.
        """
        params, before = request.params, self._set[slot]
        if before is not None and before.stop_ids == stop_ids and not self._adjusted[slot]:  # those know the prompt
            if before.params is params:
                return True
            if before.written == _WRITTEN(params):
                self._set[slot] = before._replace(params=params)
                return True
        self._set[slot] = None
        return False

    def _set_params(self, requests: Seq[Request], slots_S: IntArray, stop_ids: Seq[Seq[int]]) -> None:
        """Write the parameters that requests share, one column of the table after the other."""
        uses: BoolArray = np.array(
            [[getattr(request.params, one.field) != one.off for one in OPTIONAL] for request in requests],
            dtype=np.bool_,
        )
        touched = np.logical_or.reduce(uses | self.optional[slots_S], axis=0)  # the others are off, before and after
        self.optional[slots_S] = uses
        self.reads_history[slots_S] = np.logical_or.reduce(uses[:, _READS_HISTORY], axis=1)
        for p in PARAMETERS:
            if not p.own and (p.field not in _PLACE_OF or touched[_PLACE_OF[p.field]]):
                values = np.array([p.of(request) for request in requests], dtype=_NUMPY[p.dtype])
                put(self.columns[p.field], slots_S, values)
        known = [[*ids[:_STOP_IDS], *[-1] * (_STOP_IDS - len(ids))] for ids in stop_ids]
        put(self.params.stop_SK, slots_S, np.array(known, dtype=np.int64))
        self.sampled[slots_S] = [request.params.temperature > 0 for request in requests]
        tops = np.array([request.params.top_logprobs for request in requests], dtype=np.int64)
        if tops.any() or self.tops[slots_S].any():
            self.tops[slots_S] = tops
            put(self.tops_S, slots_S, tops)

    def most_reported(self, slots_S: Seq[int] | IntArray) -> int:
        """Likely tokens that any of these slots reports; 0 where none does."""
        return int(self.tops[slots_S].max(initial=0))

    def _set_adjustments(
        self,
        requests: Seq[Request],
        slots: Seq[int],
        stop_ids: Seq[Seq[int]],
        bad_words: Seq[Seq[Seq[int]]],
    ) -> None:
        """Write the inputs of adjustments of new sequences, where any of them, or of those before them, has one."""
        own_S = np.array(slots, dtype=np.int64)
        uses = np.logical_or.reduce(self.optional[own_S][:, _ADJUSTS], axis=1)
        if not uses.any() and not self._adjusted[own_S].any():
            return
        self._adjusted[own_S] = uses
        slots_S = to_device(own_S, self.device)
        lengths = np.array([len(request.prompt_token_ids) for request in requests], dtype=np.int64)
        tables = self.adjustments
        tables.uses_S.index_copy_(0, slots_S, to_device(uses, self.device))
        tables.prompt_S.index_copy_(0, slots_S, to_device(lengths, self.device))
        params = [request.params for request in requests]
        self._lists["min_tokens"].assign(
            slots, [_ids("stop_ids", ids) if p.min_tokens else None for p, ids in zip(params, stop_ids, strict=True)]
        )
        self._lists["suppress_tokens"].assign(slots, [_ids("suppressed", p.suppress_tokens or ()) for p in params])
        self._lists["logit_bias"].assign(slots, [_bias(p.bias_pairs) if p.logit_bias else None for p in params])
        self._lists["bad_words"].assign(slots, [_words(words) if words else None for words in bad_words])
        record = adjustments_record(tables).view(np.int64)
        if not np.array_equal(record, self._host_record):
            self._host_record = record
            self.adjustments_N.copy_(to_device(record.copy(), self.device))


def _ids(name: str, ids: Seq[int]) -> dict[str, np.ndarray] | None:
    return {name: np.array(ids, dtype=np.int64)} if ids else None


def _bias(pairs: Seq[tuple[int, float]]) -> dict[str, np.ndarray]:
    ids, values = zip(*pairs, strict=True)
    return {"bias_ids": np.array(ids, dtype=np.int64), "bias_values": np.array(values, dtype=np.float32)}


def _words(words: Seq[Seq[int]]) -> dict[str, np.ndarray]:
    """Words below each other, each at the end of its line."""
    table = np.full((len(words), max(map(len, words))), -1, dtype=np.int64)
    for line, word in zip(table, words, strict=True):
        line[-len(word) :] = word
    return {"bad_words": table}
