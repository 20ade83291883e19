"""The step report: the facts of a step that drafting reads. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, StepOutcome


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A forward of D decoding sequences, and the times of its step.

    Attributes:
        slots_D: int64, slot of each sequence.
        rows_D: int64, decode rows of each sequence.
        outcome: of the forward.
        emit_D: int64, committed tokens of each sequence that belong to its output.
        ended_D: bool, sequences whose output is complete.
        can_draft: whether the next windows may be written; False while the next forward is in flight.
        prefill_rows: rows of prompts.
        forward_rows: all rows of the forward, weighted: a row that chooses no token costs less than others. None if not
            known.
        kv_tokens: KV entries that the forward read.
        seconds: of the step; None if not known.
        forward_seconds: of the forward alone; None if not known.
    """

    slots_D: IntArray
    rows_D: IntArray
    outcome: StepOutcome
    emit_D: IntArray
    ended_D: BoolArray
    can_draft: bool
    prefill_rows: int
    forward_rows: float | None
    kv_tokens: int
    seconds: float | None
    forward_seconds: float | None
