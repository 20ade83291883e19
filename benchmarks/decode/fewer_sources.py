"""Constants that keep masks out of an engine: for benchmarks of one source of drafts."""

from __future__ import annotations

from dataclasses import replace

from wedlm_core.engine.drafting.constants import CONSTANTS

NO_MASKS = replace(CONSTANTS, prior_hazard=0.0, near=2.0, trial_share=0.0)
