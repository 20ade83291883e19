"""The result of a finished sequence: its text, tokens, statistics and times."""

from __future__ import annotations

import time

from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.errors import explain
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import CommitStats, FinishReason, Generation, Timings

NOT_NUMBERS = explain(
    "logits", "nan", "this row has logits that are no numbers, so its tokens mean nothing",
    "Check the weights, or load them with a dtype of wider range (bfloat16, float32).",
)  # fmt: skip


class Generations:
    """Makes generations of finished sequences that still have their slots, or never had one.

    Args:
        table: with the commits of the slots.
        tokenizer: makes text of it.
        vocab_size: of the model, the most tokens that can be listed for a place.
    """

    def __init__(self, table: SlotTable, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._table, self._tokenizer, self._vocab_size = table, tokenizer, vocab_size

    def of(self, sequence: Sequence, *, trace: bool) -> Generation:
        """The generation of a finished sequence, with the records of its forwards if ``trace``."""
        request, slot = sequence.request, sequence.slot
        params, now = request.params, time.perf_counter()
        if slot < 0:
            tokens, stats = [], CommitStats()
        else:
            tokens = self._table.tokens_of(slot)
            stats = self._table.stats(slot, tokens=len(tokens), host=sequence)
        failed, started = sequence.finish == FinishReason.ERROR, sequence.started_at or now
        return Generation(
            request_id=request.request_id,
            sample_index=request.sample_index,
            text="" if failed else self._text(sequence, tokens),
            token_ids=tuple(tokens),
            prompt_tokens=sequence.prompt_length,
            finish_reason=sequence.finish or FinishReason.LENGTH,
            error=(sequence.error or NOT_NUMBERS) if failed else None,
            seed=request.seed,
            stats=stats,
            timings=Timings(queue_seconds=started - sequence.added_at, run_seconds=now - started),
            logprobs=tuple(self._table.logprob[slot, : len(tokens)].tolist()) if params.logprobs else None,
            top_logprobs=self._tops(sequence, len(tokens)),
            prompt_token_ids=request.prompt_token_ids,
            trace=tuple(sequence.trace) if trace else None,
        )

    def _text(self, sequence: Sequence, tokens: list[int]) -> str:
        if sequence.stops is None:
            return self._tokenizer.decode(tokens, skip_special_tokens=True)
        sequence.stops.finish()
        return sequence.stops.text

    def _tops(self, sequence: Sequence, tokens: int) -> tuple[tuple[tuple[int, float], ...], ...] | None:
        """The most likely tokens at each place of the output, where the request wants them."""
        most = min(sequence.request.params.top_logprobs, self._vocab_size)
        if not most:
            return None
        return () if sequence.slot < 0 else self._table.tops.of(sequence.slot, tokens, most)
