"""Kernels that begin while the kernel before them runs; ``test_gpu_compiles.py`` reads their compiled code."""

from __future__ import annotations

import pytest
import torch

from wedlm_core.kernels.gpu.dependent_launch import dependent, takes_dependents
from wedlm_core.kernels.gpu.layer_gpu import add_rms_norm


def test_launches_on_a_cpu_or_in_the_interpreter_depend_on_nothing() -> None:
    assert dependent(torch.device("cpu")) == {"DEPENDENT": False}


@pytest.mark.gpu
def test_a_captured_chain_of_dependent_kernels_computes_what_they_do_one_by_one() -> None:
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) >= (9, 0):
        assert takes_dependents(device), "or its driver is of before CUDA 12.3"
    weight, x = torch.rand(2048, device=device), torch.randn(700, 2048, device=device)

    def chain(y: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            y = add_rms_norm(y, None, weight, 1e-6)
        return y

    expected = x
    for _ in range(50):
        expected = add_rms_norm(expected, None, weight, 1e-6)
        torch.cuda.synchronize()
    chain(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(x)
    for _ in range(20):
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
