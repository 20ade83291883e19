"""Frozen, validated configurations: the model, the engine, the streaming strategy, and the cost of a forward.

Reads no files and imports no torch.
"""

from wedlm_core.config.engine_config import EngineConfig, StreamingSwitches
from wedlm_core.config.engine_fields import EngineFields
from wedlm_core.config.model import EXACT_WEIGHT_DTYPES, ModelConfig, YarnScaling
from wedlm_core.config.step_cost import StepCost

__all__ = [
    "EXACT_WEIGHT_DTYPES",
    "EngineConfig",
    "EngineFields",
    "ModelConfig",
    "StepCost",
    "StreamingSwitches",
    "YarnScaling",
]
