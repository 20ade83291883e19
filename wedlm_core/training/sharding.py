"""One model over several processes: FSDP2 shards parameters, gradients and optimiser states, and makes them whole."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from wedlm_core.model.decoder import Decoder

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Of a state that rank 0 has whole, in host memory."""


def shard(model: Decoder) -> None:
    """Shard a model that all ranks hold equally; its parameters become ``DTensor``. Gradients are means over ranks."""
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    register_fsdp_forward_method(model, "logits")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every rank calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of this rank of a tensor that all ranks hold equally, as ``like`` is sharded."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def whole_model(model: Decoder) -> Decoder:
    """The model with whole parameters: itself, or on rank 0 a copy in host memory. Every rank calls it."""
    if not isinstance(model.norm.weight, DTensor):
        return model
    state = get_model_state_dict(model, options=WHOLE)
    with torch.device("meta"):
        copy = Decoder(model.config)
    if state:  # rank 0
        copy.load_state_dict(state, assign=True)
    return copy
