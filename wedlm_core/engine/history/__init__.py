"""Drafts from history: what followed the same tokens before, in a sequence's own text or in the job's finished rows.

Knows tokens and slots by number; knows no tensor, no model and no request. Under ``verified`` decoding any draft is
safe, so what is kept here, forgotten, or learned changes how many forwards it takes, and never what is committed.
"""

from __future__ import annotations

from wedlm_core.engine.history.history import DEFAULT_BYTES, History, Proposal, check_bytes
from wedlm_core.engine.history.tuning import DEFAULT_TUNING, HistoryTuning

__all__ = ["DEFAULT_BYTES", "DEFAULT_TUNING", "History", "HistoryTuning", "Proposal", "check_bytes"]
