"""DecoderTeam: all layers of the decoder in one call, by threads that meet inside it.

A small model would spend most of a step in the dispatch of hundreds of small torch operations. Its oracle is the plain
:class:`wedlm_core.model.decoder.Decoder`, which runs where this one cannot (:func:`why_no_team`).
"""

from __future__ import annotations

import functools
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from wedlm_core.attention.paged_cpu import PagedCpuPlan, describe_pool, numbers_of_pool, score_width
from wedlm_core.kernels.cpu.eight_bits import widen_rows
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
from wedlm_core.kernels.cpu.records import ADVANCE, CHOICE, LAYER
from wedlm_core.kernels.rounding import rounded
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.model.draw import Advance, Draw, Drawn, SlotColumns, States, StepRows
from wedlm_core.model.int8 import Int8Embedding, Int8Linear, exact_sums
from wedlm_core.model.panel_layers import PROJECTIONS, PanelEmbedding, PanelLinear
from wedlm_core.model.panels import PanelWeight, pack
from wedlm_core.model.rotary import rope_tables
from wedlm_core.model.team import Team

_FIELDS = ("qkv", "o", "gate_up", "down")
_READ_WHILE_MOVED = 5
"""Bytes of weights that a thread reads while one byte of a row goes from core to core."""


def numbers_of(linear: nn.Module) -> str | None:
    """Which numbers the panels of a layer hold: the fastest that are right; None if this CPU has none for its weight.

    Where all are wrong, the first of them.
    """
    if isinstance(linear, PanelLinear):
        return linear.panels.numbers
    if isinstance(linear, Int8Linear):
        kinds: tuple[str, ...] = ("int8", "int16")
    elif isinstance(linear, nn.Linear):
        kinds = (str(linear.weight.dtype).removeprefix("torch."),)
    else:
        return None
    found = [one for one in numbers_here() if numeric_kind(one) in kinds]
    return next((one for one in found if _why_wrong(one) is None), found[0] if found else None)


def why_no_team(model: Decoder) -> str | None:
    """Why :class:`DecoderTeam` cannot run a model here; None if it can."""
    kinds = {numbers_of(getattr(layer, name)) for layer in model.layers for name in PROJECTIONS}
    head = numbers_of(model.lm_head)
    if None in kinds or head is None or len(kinds) != 1:
        return "this CPU has no kernel for the numbers of its weights"
    return next((why for one in {*kinds, head} if (why := _why_wrong(cast(str, one))) is not None), None)


@functools.cache
def _why_wrong(numbers: str) -> str | None:
    """The error in the products of these numbers on this machine; None if extreme and random values are right."""
    generator = torch.Generator().manual_seed(0)
    rows, outputs, inputs = 75, 130, 258
    x_RI = torch.randn(rows, inputs, generator=generator)
    kind = numeric_kind(numbers)
    if kind in ("int8", "int16"):
        byte_OI = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        byte_OI[0], byte_OI[1], byte_OI[2, ::2] = 127, -127, 127
        x_RI[0], x_RI[1], x_RI[2, ::2] = 1.0, -1.0, 1.0
        packed = pack(byte_OI, numbers, scale_O=torch.ones(outputs))
        byte_RI, scale_R = rounded(x_RI)
        want_RO, tolerance = exact_sums(byte_RI, byte_OI).float() * scale_R[:, None], 0.0
    else:
        weight_OI = torch.randn(outputs, inputs, generator=generator).to(getattr(torch, kind))
        packed = pack(weight_OI, numbers)
        want_RO = (x_RI.to(weight_OI.dtype).double() @ weight_OI.double().t()).float()
        tolerance = 1e-4 * want_RO.abs().max().item()
    team = Team()
    found_RO = team.product(packed, x_RI)
    if not (found_RO - want_RO).abs().max().item() <= tolerance:
        return f"products of {numbers} are wrong on this CPU"
    alone = torch.cat([team.product(packed, x_RI[r : r + 1]) for r in range(rows)])
    return None if torch.equal(alone, found_RO) else f"products of {numbers} depend on other rows"


class DecoderTeam:
    """Runs a :class:`Decoder` of float32, bfloat16 or int8 weights on CPU; all else is computed in float32.

    The length of the rotary tables is that of the decoder at each call.

    Args:
        model: a decoder without an obstacle in :func:`why_no_team`. Do not change its weights afterwards.

    Attributes:
        draws: whether :meth:`draw` can be called: layers and head hold the same numbers.
        unread_row: cost of a row that is not read after the last layer, as a share of a row that chooses a token: its
            share of the weights.
    """

    def __init__(self, model: Decoder) -> None:
        self._model, self._config = model, model.config
        self._team, self._head_team = Team(), Team()
        layers = [cast(DecoderLayer, layer) for layer in model.layers]
        self._numbers = cast(str, numbers_of(layers[0].qkv_proj))
        self._packed = [[self._pack(getattr(layer, name)) for name in PROJECTIONS] for layer in layers]
        self._table = self._tied_table()
        self._head = self._table or self._pack(model.lm_head)
        self.draws = self._head.numbers == self._numbers
        self._columns: SlotColumns | None = None
        self._allowed: States | None = None
        self._drawn = Drawn(0, self._head.outputs)
        self._lines = np.zeros(len(layers), dtype=LAYER)
        self._kept: list[Tensor] = []
        for line, layer, products in zip(self._lines, layers, self._packed, strict=True):
            line["input_norm"], line["post_norm"] = self._address(layer.input_norm), self._address(layer.post_norm)
            line["q_norm"], line["k_norm"] = self._address(layer.q_norm), self._address(layer.k_norm)
            for field, product in zip(_FIELDS, products, strict=True):
                line[field] = product.record()
        self._pool: KVPool | None = None
        self._held = ""  # numbers of its keys and values
        self._stream_TD = torch.empty(0, self._config.hidden_size)
        self._stream = self._stream_TD.numpy()
        embed = model.embed
        floats = isinstance(embed, nn.Embedding) and embed.weight.dtype == torch.float32
        self._plain_table = embed.weight.detach().contiguous().numpy() if floats else None
        self._head_bytes = self._head.data.numel() * self._head.data.element_size()
        self._reserved = 0  # rows that the scratch memory holds
        self._read = self._last_spans = np.empty(0, dtype=np.int64)
        by_layer = [[one.data.numel() * one.data.element_size() for one in layer] for layer in self._packed]
        self._weights = sum(map(sum, by_layer))
        others = sum(by_layer[-1][1:])  # of the last layer such a row meets the first product alone
        self.unread_row = (self._weights - others) / (self._weights + self._head_bytes)
        self._cos, self._sin = model.cos, model.sin
        self._fixed()

    def _tied_table(self) -> PanelWeight | None:
        """The packed head, which also embeds tokens; None where the model has an embedding of its own."""
        return self._pack(self._model.lm_head) if isinstance(self._model.embed, PanelEmbedding) else None

    def _pack(self, linear: nn.Module) -> PanelWeight:
        if isinstance(linear, PanelLinear):
            return linear.panels.with_bias(linear.bias)
        numbers = cast(str, numbers_of(linear))
        scale_O = linear.scale_O if isinstance(linear, Int8Linear) else None
        weight = cast(Tensor, linear.weight)
        bias_O = cast("Tensor | None", linear.bias)
        return pack(weight.detach(), numbers, scale_O=scale_O, bias_O=bias_O)

    def _address(self, norm: nn.Module | None) -> int:
        if norm is None:
            return 0
        self._kept.append(cast(Tensor, norm.weight).detach().float().contiguous())
        return self._kept[-1].data_ptr()

    def _fixed(self) -> None:
        config, task = self._config, self._team.task
        task["layers"], task["hidden"], task["inner"] = (
            config.num_hidden_layers, config.hidden_size, config.intermediate_size,
        )  # fmt: skip
        task["heads"], task["kv_heads"], task["dim"] = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        task["eps"], task["scale"] = config.rms_norm_eps, np.float32(config.head_dim**-0.5)
        task["lines"], task["final_norm"] = self._lines.ctypes.data, self._address(self._model.norm)
        task["head"] = self._head.record()
        task["apart"] = self._apart()
        self._choice, self._advance = (
            {name: self._team.tasks[part][name] for name in kind.names or ()}
            for part, kind in (("choice", CHOICE), ("advance", ADVANCE))
        )

    def _apart(self) -> int:
        """With so many rows, a thread takes rows of products, not outputs: it reads all weights then."""
        of_layer = self._packed[0]
        moved = 4 * sum(one.inputs + one.outputs for one in of_layer)  # bytes of a row
        read = sum(one.data.numel() * one.data.element_size() for one in of_layer)
        return max(1, round(read / (_READ_WHILE_MOVED * moved)))

    def head(self, hidden_RD: Tensor) -> Tensor:
        """Hidden states to logits, float32 ``[R, V]``."""
        return self._head_team.product(self._head, hidden_RD)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        entries: Tensor,
        pool: KVPool,
        plan: PagedCpuPlan,
        read_R: Tensor | None = None,
    ) -> Tensor:
        """Packed rows -> hidden states after the final norm.

        Args:
            ids: int64 ``[T]`` tokens.
            positions: int64 ``[T]`` logical positions.
            entries: int64 ``[T]`` KV entry of each row.
            pool: KV pool with transposed keys.
            plan: the attention plan of this forward.
            read_R: int64, ascending, the rows whose states are wanted; None for all.

        Returns:
            float32 ``[R, D]``, valid until the next call.
        """
        rows, task = ids.shape[0], self._team.task
        self._reserve(rows)
        self._choice["picks"][0], count = 0, rows if read_R is None else read_R.shape[0]
        self._read[0] = -1 if read_R is None else count
        if read_R is not None:
            self._read[1 : 1 + count] = read_R.numpy()
        task["positions"], task["entries"] = positions.data_ptr(), entries.data_ptr()
        kept = plan.describe(task)
        self._run(ids, rows, pool, self._weights)
        del kept
        return self._team.tensor("normed", count, self._config.hidden_size)

    def draw(self, rows: StepRows, draw: Draw, pool: KVPool) -> Drawn:
        """A call, the head and the choice of tokens at once: threads start once, and share the choice as well.

        Oracle: :meth:`__call__`, :meth:`head` and :func:`wedlm_core.decoding.sampling_cpu.choose_cpu` one after the
        other; equal bit for bit.
        """
        team, fields = self._team, self._team.fields
        self._tell(draw)
        self._tell_advance(draw.advance, rows)
        table, spans = rows.row_3T.data_ptr(), rows.span_6S.data_ptr()
        step, wide = 8 * rows.row_3T.shape[1], 8 * rows.span_6S.shape[1]
        fields["positions"][0], fields["entries"][0] = table + step, table + 2 * step
        fields["pages"][0], fields["page_columns"][0] = rows.page_N.data_ptr(), rows.page_columns
        fields["starts"][0], fields["counts"][0], fields["cached"][0] = spans, spans + wide, spans + 2 * wide
        fields["sequences"][0], fields["width"][0] = rows.sequences, score_width(pool, rows.longest)
        fields["out"][0] = team.scratch("logits", draw.most_logits * self._head.outputs)
        self._run(rows.row_3T[0], rows.total, pool, self._weights + self._head_bytes)
        self._drawn.logit_rows, self._drawn.logits_N = int(self._read[0]), team.held("logits")
        return self._drawn

    def _tell(self, draw: Draw) -> None:
        """Fill the record of the choice."""
        choice, columns, (pick_3R, count) = self._choice, draw.columns, draw.picks
        if count > self._drawn.token_R.shape[0]:
            self._drawn = Drawn(2 * count, self._head.outputs)
            choice["tokens"][0], choice["entropies"][0], choice["logprobs"][0] = (
                self._drawn.token_R.data_ptr(), self._drawn.entropy_R.data_ptr(), self._drawn.logprob_R.data_ptr(),
            )  # fmt: skip
            choice["lines"][0], choice["logit_picks"][0] = (
                self._drawn.line_R.data_ptr(), self._drawn.logit_pick_R.data_ptr(),
            )  # fmt: skip
        if columns is not self._columns:
            self._columns, choice["slots"][0] = columns, columns.seed_S.shape[0]
            choice["temperature"][0], choice["seeds"][0] = columns.temperature_S.data_ptr(), columns.seed_S.data_ptr()
            choice["suppress"][0], choice["min_p"][0] = columns.suppress_S.data_ptr(), columns.min_p_S.data_ptr()
            choice["reports"][0] = columns.tops_S.data_ptr()
            choice["top_k"][0], choice["top_p"][0] = columns.top_k_S.data_ptr(), columns.top_p_S.data_ptr()
            choice["mask_token"][0], choice["vocab_limit"][0] = draw.mask_token_id, draw.vocab_limit
        choice["most"][0] = draw.most
        if draw.most:
            self._drawn.top_token_RK = torch.zeros(count, draw.most, dtype=torch.int64)
            self._drawn.top_logprob_RK = torch.zeros(count, draw.most)
            choice["top_tokens"][0] = self._drawn.top_token_RK.data_ptr()
            choice["top_logprobs"][0] = self._drawn.top_logprob_RK.data_ptr()
        first, step = pick_3R.data_ptr(), 8 * pick_3R.shape[1]
        choice["picks"][0], choice["pick_rows"][0] = count, first
        choice["pick_slots"][0], choice["pick_positions"][0] = first + step, first + 2 * step
        choice["adjustments"][0] = 0 if draw.adjustments is None else draw.adjustments.ctypes.data
        if draw.allowed is not self._allowed:
            self._allowed = draw.allowed
            self._tell_states(draw.allowed)

    def _tell_states(self, allowed: States | None) -> None:
        """Fill the grammars' part of the record of the choice."""
        choice = self._choice
        choice["states"][0] = 0
        if allowed is None:
            return
        choice["bits"][0], (choice["bit_lines"][0], choice["bit_words"][0]) = (
            allowed.bits_UW.data_ptr(), allowed.bits_UW.shape,
        )  # fmt: skip
        choice["states"][0], choice["state_count"][0] = allowed.line_N.data_ptr(), allowed.line_N.shape[0]
        choice["first_states"][0], choice["slot_states"][0], choice["state_positions"][0] = (
            allowed.first_S.data_ptr(), allowed.count_S.data_ptr(), allowed.position_S.data_ptr(),
        )  # fmt: skip

    def _tell_advance(self, advance: Advance | None, rows: StepRows) -> None:
        """Fill the record of the advance after the choice."""
        told = self._advance
        if advance is None:
            told["decoding"][0] = 0
            return
        told["decoding"][0], told["places"][0] = advance.decoding, advance.places
        told["states"][0], told["mask"][0] = advance.states, advance.mask
        told["columns"][0], told["spans"][0] = rows.span_6S.shape[1], rows.span_6S.data_ptr()
        told["counts"][0], told["flags"][0], told["token"][0], told["nats"][0], told["early"][0] = advance.outcome

    def _run(self, ids: Tensor, rows: int, pool: KVPool, weights: int) -> None:
        """Run the forward that the record describes, of the first ``rows`` ids; ``weights``: bytes that are read."""
        fields = self._team.fields
        self._reserve(rows)
        self._embed(ids, rows)
        self._use(pool)
        cos, sin = self._tables()
        fields["cos"][0], fields["sin"][0], fields["reach"][0] = cos.data_ptr(), sin.data_ptr(), cos.shape[0]
        fields["rows"][0] = rows
        self._team.run(self._numbers, weights * rows, self._held)

    def _embed(self, ids: Tensor, rows: int) -> None:
        """Write the embedded rows to the stream."""
        embed, x_TD = self._model.embed, self._stream_TD
        if self._table is not None:
            self._table.look_up(ids, x_TD, rows)
        elif isinstance(embed, Int8Embedding):
            table = embed.weight.numpy(), embed.scale_V.numpy()
            widen_rows(*table, ids.numpy(), self._stream, 0, rows)
        elif self._plain_table is not None:
            self._plain_table.take(ids[:rows].numpy(), 0, self._stream[:rows])
        else:
            x_TD[:rows] = embed.weight.index_select(0, ids[:rows])

    def _reserve(self, rows: int) -> None:
        """Grow the scratch memory to hold ``rows`` rows; it never shrinks."""
        if rows <= self._reserved:
            return
        config, team, task = self._config, self._team, self._team.task
        heads = config.num_attention_heads * config.head_dim
        widths = {"normed": config.hidden_size, "q": heads, "context": heads, "gated": config.intermediate_size,
                  "qkv": heads + 2 * config.num_key_value_heads * config.head_dim,
                  "gate_up": 2 * config.intermediate_size, "delta": config.hidden_size}  # fmt: skip
        for name, width in widths.items():
            task[name] = team.scratch(name, rows * width)
        team.narrow(rows, max(widths.values()), self._numbers)
        self._stream_TD = torch.empty(rows, config.hidden_size)
        self._stream = self._stream_TD.numpy()
        task["stream"] = self._stream_TD.data_ptr()
        self._read, self._last_spans = np.empty(1 + rows, dtype=np.int64), np.empty(3 * rows, dtype=np.int64)
        task["read"], task["last_spans"] = self._read.ctypes.data, self._last_spans.ctypes.data
        self._reserved = rows

    def _use(self, pool: KVPool) -> None:
        """Tell the record of the pool, once."""
        if pool is self._pool:
            return
        self._pool, self._held = pool, numbers_of_pool(pool)
        describe_pool(pool, self._team.task, self._lines)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """The rotary tables in float32, as long as the decoder's."""
        if self._model.cos.dtype == torch.float32:
            return self._model.cos, self._model.sin
        if len(self._cos) != len(self._model.cos) or self._cos.dtype != torch.float32:
            self._cos, self._sin = rope_tables(self._config, len(self._model.cos))
        return self._cos, self._sin
