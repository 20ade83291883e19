"""Decodes a few rows of the output once more, step by step, for the player of the report. Knows no Ray.

Bounded: some rows, some tokens of each, some seconds. Rows that cannot be traced are left out, with the reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import codec
from pipeline.codec import Failure, FinishReason, Request, SamplingParams, redact
from pipeline.plan.job import Job
from pipeline.prompts.row_faults import row_params
from pipeline.prompts.tokenize import encoded_prompts
from pipeline.reporting.traces import RowTrace, all_tokens, forwards_of, pieces_of
from pipeline.settings.reasoning import REASONING
from wedlm_core.tokenizer import TextStream, Tokenizer


def rows_that_succeeded(tables: Iterable[pa.Table], most: int, prefix: str = "") -> pa.Table | None:
    """The first output rows that are no failures; None if there are none."""
    found: list[pa.Table] = []
    for table in tables:
        found.append(table.filter(pc.not_equal(table[f"{prefix}finish_reason"], FinishReason.ERROR.value)))
        if sum(kept.num_rows for kept in found) >= most:
            break
    rows = pa.concat_tables(found).slice(0, most) if found else None
    return rows if rows is not None and rows.num_rows else None


SECONDS = 8.0
"""Of decoding, at most."""
TOKENS = 192
"""Of each row; longer ones are traced up to here."""
SPARE = 4
"""Rows more than are asked for, in place of those that cannot be traced."""
_PROMPT_TOKENS = 2048
"""Rows with longer prompts are not traced."""
_PROMPT_CHARACTERS = 700
_WINDOW = 8
"""Masks where the run chose them by load: so many fit on a screen."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """The traces of some rows, and why others have none."""

    traces: tuple[RowTrace, ...] = ()
    reasons: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Text that :meth:`from_json` reads back."""
        return json.dumps({"traces": [trace.to_dict() for trace in self.traces], "reasons": list(self.reasons)})

    @classmethod
    def from_json(cls, text: str) -> Traced:
        """Inverse of :meth:`to_json`."""
        raw = json.loads(text)
        return cls(traces=tuple(map(RowTrace.from_dict, raw["traces"])), reasons=tuple(raw["reasons"]))


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row to be traced: its cells, and its requests by its own strategy and autoregressively."""

    cells: Mapping[str, Any]
    own: Request
    plain: Request


@dataclass(frozen=True, kw_only=True)
class _Decoded:
    """A request decoded as far as it got."""

    token_ids: tuple[int, ...]
    records: Sequence[Mapping[str, Any]]
    text: str | None
    prompt_tokens: int


def trace_rows(job: Job, engine: Any, rows: pa.Table, most: int) -> Traced:
    """Trace the first ``most`` of some output rows that can be traced, with an engine without work."""
    if getattr(engine, "traced", None) is None:
        return Traced(reasons=("this engine cannot trace",))
    missing = sorted(set(_prompt_columns(job)) - set(rows.column_names))
    if missing:
        return Traced(reasons=(f"the output does not hold the columns that prompts are made of: {missing}",))
    chosen, reasons = _chosen(job, rows, most)
    if not chosen:
        return Traced(reasons=tuple(reasons))
    requests = [request for row in chosen for request in dict.fromkeys((row.own, row.plain))]
    longest = max(len(r.prompt_token_ids) + r.params.max_tokens for r in requests)
    with engine.traced(len(requests), longest) as tracing:
        decoded = _decode(tracing, requests)
    traces = []
    for row in chosen:
        own, plain = decoded.get(row.own.request_id), decoded.get(row.plain.request_id)
        if own is None or plain is None or not own.token_ids:
            reasons.append(f"row {row.cells['row_id']}: no token came in {SECONDS:.0f} s")
            continue
        traces.append(_trace(row, own, plain, engine.tokenizer))
    return Traced(traces=tuple(traces), reasons=tuple(reasons))


def _prompt_columns(job: Job) -> Iterator[str]:
    """The input columns that prompts and parameters of rows are made of."""
    if job.prompt_kind == "template":
        yield from job.source.schema.names
    else:
        yield job.prompt_column
    config = job.config
    yield from filter(None, (config.tools_column, config.chat_template_kwargs_column))
    yield from config.sampling_columns.values()


def _chosen(job: Job, rows: pa.Table, most: int) -> tuple[list[_Row], list[str]]:
    """The rows to trace, and why others are not."""
    chosen: list[_Row] = []
    reasons: list[str] = []
    prefix = job.config.column_prefix
    names = rows.column_names[len(job.columns) :]
    cells = rows.select(names).to_pylist()
    prompts, given = encoded_prompts(rows, job)
    for number, (row, prompt, own) in enumerate(zip(cells, prompts, given, strict=True)):
        if len(chosen) >= most:
            break
        plain = {name.removeprefix(prefix): value for name, value in row.items()}
        made = _requests(job, number, plain, prompt, own)
        if isinstance(made, _Row):
            chosen.append(made)
        else:
            reasons.append(f"row {plain['row_id']}: {made}")
    return chosen, reasons


def _requests(
    job: Job, number: int, cells: Mapping[str, Any], prompt: Any, given: Mapping[str, Any] | None
) -> _Row | str:
    """The requests of a row, or why it cannot be traced."""
    text = None if given is None else json.dumps(given, default=str)
    params = row_params(job.config, text)
    if isinstance(prompt, (Failure, str)) or isinstance(params, Failure) or params is None:
        return "its prompt cannot be made again"
    if len(prompt) != cells["prompt_tokens"] or codec.params_hash(params) != cells["params_hash"]:
        return "its prompt or its parameters have changed"
    if len(prompt) > _PROMPT_TOKENS:
        return f"its prompt has more than {_PROMPT_TOKENS} tokens"
    written = f"{cells.get(REASONING) or ''}{cells['text'] or ''}"
    if redact(written) != written:
        return "its text may hold a credential"
    requests = codec.make_requests(f"trace/{number}", cells["row_id"], prompt, params, job.config.seed)
    found = next((r for r in requests if (r.sample_index, r.seed) == (cells["sample_index"], cells["seed"])), None)
    if found is None:
        return "its seed has changed"
    own = replace(found, params=_plain(params, str(params.strategy)))
    plain = replace(found, request_id=f"{found.request_id}/plain", params=_plain(params, "autoregressive"))
    return _Row(cells=cells, own=own, plain=own if own.params == plain.params else plain)


def _plain(params: SamplingParams, strategy: str) -> SamplingParams:
    """Parameters that choose the same tokens, with a window that does not depend on load."""
    window = _WINDOW if params.window_size == "auto" else params.window_size
    return replace(params, n=1, logprobs=False, window_size=window, strategy=strategy)


def _decode(engine: Any, requests: Sequence[Request]) -> dict[str, _Decoded]:
    """Decode requests in one batch, each up to :data:`TOKENS` tokens, for :data:`SECONDS`."""
    end = time.monotonic() + SECONDS
    running, decoded = {}, {}
    try:
        for request in requests:
            engine.add(request)
            running[request.request_id] = request
        while running and time.monotonic() < end:
            for done in engine.step():
                running.pop(done.request_id, None)
                if done.finish_reason != FinishReason.ERROR:
                    decoded[done.request_id] = _Decoded(token_ids=tuple(done.token_ids), records=done.trace or (),
                                                        text=done.text, prompt_tokens=done.prompt_tokens)  # fmt: skip
            for name in [name for name in running if len(engine.committed(name)) >= TOKENS]:
                decoded[name] = _so_far(engine, running.pop(name))
                engine.abort(name)
        decoded |= {name: _so_far(engine, request) for name, request in running.items()}
    finally:
        for name in running:
            engine.abort(name)
    return decoded


def _so_far(engine: Any, request: Request) -> _Decoded:
    name = request.request_id
    return _Decoded(token_ids=tuple(engine.committed(name)), records=engine.trace_of(name), text=None,
                    prompt_tokens=len(request.prompt_token_ids))  # fmt: skip


def _trace(row: _Row, own: _Decoded, plain: _Decoded, tokenizer: Tokenizer) -> RowTrace:
    cells = row.cells
    forwards = forwards_of(own.records, own.prompt_tokens)
    prompt = tokenizer.decode(list(row.own.prompt_token_ids), skip_special_tokens=True)
    return RowTrace(
        row_id=cells["row_id"],
        sample_index=cells["sample_index"],
        strategy=str(row.own.params.strategy),
        prompt="\N{HORIZONTAL ELLIPSIS}" * (len(prompt) > _PROMPT_CHARACTERS) + redact(prompt[-_PROMPT_CHARACTERS:]),
        window=0 if row.own.params.strategy == "autoregressive" else int(row.own.params.window_size),
        tokens=cells["completion_tokens"],
        pieces=pieces_of(own.token_ids, TextStream(tokenizer).push, own.text),
        token_ids=own.token_ids,
        whole=own.text is not None,
        same=_same(own, cells),
        forwards=forwards,
        plain_ids=plain.token_ids,
        plain_pieces=pieces_of(plain.token_ids, TextStream(tokenizer).push, plain.text),
        vocabulary={token: tokenizer.decode([token], skip_special_tokens=False)
                    for token in sorted({*all_tokens(forwards), *plain.token_ids})},
    )  # fmt: skip


def _same(own: _Decoded, cells: Mapping[str, Any]) -> bool | None:
    """Whether these are the tokens that the output has for the row."""
    kept = cells.get("token_ids")
    if kept is not None:
        return list(own.token_ids) == (kept if own.text is not None else kept[: len(own.token_ids)])
    # An answer without its reasoning is a part of the text only.
    return None if own.text is None or REASONING in cells else own.text == cells["text"]
