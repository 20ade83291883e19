"""Frozen, validated configurations: of a model, of an engine, and of what an engine is told of streaming and costs.

Knows numbers and names; reads no file and imports no torch.
"""

from wedlm_core.config.engine import EngineConfig
from wedlm_core.config.model import ModelConfig, YarnScaling
from wedlm_core.config.step_cost import StepCost
from wedlm_core.config.streaming import StreamingSwitches

__all__ = ["EngineConfig", "ModelConfig", "StepCost", "StreamingSwitches", "YarnScaling"]
