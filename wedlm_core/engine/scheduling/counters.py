"""The work of an engine since it was made, and how full it is: a few numbers, kept forward by forward.

Torch-free. The engine's thread adds to them with a few sums per forward; any thread may read them,
at a cost that does not depend on the number of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class EngineCounters:
    """Sums over all requests since the engine was made. Each only grows.

    Attributes:
        forwards: forwards of the model.
        decode_forwards: decode forwards of each sequence, added up (``CommitStats.decode_forwards``): a forward of 32
            decoding sequences counts 32 times.
        prompt_rows: token rows that only filled the KV cache: of prompts, and of preempted sequences.
        decode_rows: the other token rows (``CommitStats.rows_forwarded``).
        masks: masks that were allocated to the windows of the sequences of each forward, before windows are cut at
            ``max_tokens``.
        tokens: generated tokens.
        prompt_tokens: tokens of the prompts of requests that got a slot.
        cached_prompt_tokens: those of them whose KV was found in the prefix cache.
        preemptions: times that a sequence lost its pages.
        fallbacks: exceptions of optimisations; the engine took the plain way instead.
        decode_seconds: of steps whose windows drafting chose, prefill left out; steps with a grammar are not counted.
        autoregressive_seconds: that autoregressive decoding was expected to take for the tokens of these steps.
    """

    forwards: int = 0
    decode_forwards: int = 0
    prompt_rows: int = 0
    decode_rows: int = 0
    masks: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    fallbacks: int = 0
    decode_seconds: float = 0.0
    autoregressive_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EngineSnapshot:
    """The counters at one moment, and how full the engine is.

    Read while the engine runs, its numbers may be of two neighbouring forwards.

    Attributes:
        counters: a copy.
        running: sequences that hold KV pages.
        waiting: sequences that wait for a slot, for pages, or to be recomputed.
        slots: sequences that can run at once.
        kv_pages_used: pages that some sequence holds.
        kv_pages: pages of the pool.
    """

    counters: EngineCounters
    running: int
    waiting: int
    slots: int
    kv_pages_used: int
    kv_pages: int

    @property
    def occupancy(self) -> float:
        """Share of the slots that run."""
        return self.running / self.slots

    @property
    def kv_pages_share(self) -> float:
        """Share of the pool's pages that some sequence holds."""
        return self.kv_pages_used / self.kv_pages
