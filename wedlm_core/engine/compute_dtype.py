"""The dtype of an engine's computation between matrix products."""

from __future__ import annotations

import logging

import torch

from wedlm_core.attention import runs_on_cpu_only
from wedlm_core.config import EngineConfig
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.decoder import Decoder

_LOG = logging.getLogger(__name__)


def compute_dtype(model: Decoder, config: EngineConfig) -> torch.dtype:
    """The dtype of hidden states, and of attention over keys and values.

    It is the model's dtype, except for bfloat16 weights on a CPU that multiplies them fast: there only the products are
    in bfloat16, and the rest is in float32, by the kernels of float32 models.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return model.dtype
    from wedlm_core.model.decoder_team import why_no_team

    why = _why_no_kernels(config) or why_no_team(model)
    if why is None:
        return torch.float32
    _LOG.warning('bfloat16 on this CPU is slow here (%s): dtype="float32" is faster', why)
    return model.dtype


def check_weights_device(config: EngineConfig, device: torch.device) -> None:
    """Check that weights of this dtype can be multiplied on a device.

    Raises:
        ConfigError: weights in int4 on a CPU.
    """
    if config.weight_dtype == "int4" and device.type == "cpu":
        raise ConfigError(explain("weight_dtype", "int4", "it runs on GPUs only", 'Use "int8" on a CPU.'))


def takes_panels(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether an engine multiplies by packed weights, so that a model may be packed while it is loaded for it.

    Args:
        config: of the engine.
        device: of the model.
        dtype: of the model.
    """
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    return config.weight_dtype in ("auto", "int8") and _why_no_kernels(config) is None


def _why_no_kernels(config: EngineConfig) -> str | None:
    """Why an engine on a CPU does not use the kernels of float32 models; None if it does."""
    if config.attention != "auto" and not runs_on_cpu_only(config.attention):
        return f'attention="{config.attention}" computes in the dtype of the model'
    if config.kv_cache_dtype == "fp8_e4m3":
        return f'kv_cache_dtype="{config.kv_cache_dtype}" rules out the kernels that it needs'
    if config.weight_dtype == "fp8_e4m3":
        return "weights of 8-bit floats are converted in every product"
    return None
