"""Muon: updates are nearly orthogonal, and the parts of a fused matrix are updated separately."""

import torch

from wedlm_core.training.optim import Muon, orthogonalise


def test_singular_values_come_close_to_one():
    matrices = torch.randn(3, 24, 48, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_parts_of_a_fused_matrix_are_updated_as_if_they_were_alone():
    generator = torch.Generator().manual_seed(1)
    fused = torch.nn.Parameter(torch.randn(48, 16, generator=generator))
    alone = [torch.nn.Parameter(part.detach().clone()) for part in fused.split([32, 16])]
    fused.grad = torch.randn(48, 16, generator=generator)
    for part, gradient in zip(alone, fused.grad.split([32, 16]), strict=True):
        part.grad = gradient.clone()
    Muon([fused], lr=0.1, split={id(fused): [32, 16]}).step()
    Muon(alone, lr=0.1).step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in alone]))


def test_a_quadratic_is_minimised():
    goal = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    optimiser = Muon([weight], lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        (weight - goal).square().sum().backward()
        optimiser.step()
    assert (weight - goal).abs().max() < 0.2
