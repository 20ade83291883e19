"""Engines whose drafts come from fewer sources than they might."""

from __future__ import annotations

import math
from dataclasses import replace

from wedlm_core.engine.windows.tuning import DEFAULT_TUNING

__all__ = ["NO_MASKS"]

NO_MASKS = replace(DEFAULT_TUNING, alone_within=0.0, probe_share=0.0, visit_share=0.0, rival_within=math.inf)
"""Constants of a planner that gives no sequence any masks, and tries none out."""
