"""Dual-stream rows: blocks, reorder, targets and weights."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.ordering import observed_first
from wedlm_core.training.examples import Example
from wedlm_core.training.masking import IGNORE, Block, LossWeights, MaskingConfig, dual_stream, plan_blocks

EOS, MASK = 1, 2


@given(
    seed=st.integers(0, 2**32), start=st.integers(0, 40), length=st.integers(1, 80),
    size=st.integers(1, 32), share=st.floats(0, 1),
)  # fmt: skip
def test_blocks_tile_the_region_and_each_has_a_mask(seed, start, length, size, share):
    config = MaskingConfig(block_sizes=(size,), full_share=share)
    blocks = plan_blocks(random.Random(seed), start, length, config)
    at = start
    for block in blocks:
        assert block.start == at
        assert 1 <= len(block.observed) <= size
        assert not all(block.observed)
        at += len(block.observed)
    assert at == start + length


@given(st.integers(0, 2**32))
def test_rows_follow_the_reorder_that_decoding_uses(seed):
    rng = random.Random(seed)
    answer = (*(rng.randrange(3, 90) for _ in range(rng.randint(1, 30))), EOS)
    example = Example(prompt=(5, 6), answer=answer)
    config = MaskingConfig(block_sizes=(8,), full_share=0.3)
    blocks = plan_blocks(rng, 2, len(answer) + 4, config)
    rows = dual_stream(example, blocks, eos=EOS, mask=MASK, weights=LossWeights())
    clean = [*example.prompt, *answer, *[EOS] * 4]
    at = 2 + len(answer)
    for block in blocks:
        order = observed_first(torch.tensor(block.observed)).tolist()
        for physical, offset in enumerate(order):
            row, position = at + physical, block.start + offset
            assert rows.positions[row] == position
            assert rows.limit[row] == block.start
            if block.observed[offset]:
                assert (rows.ids[row], rows.target[row], rows.weight[row]) == (clean[position], IGNORE, 0.0)
            else:
                assert (rows.ids[row], rows.target[row]) == (MASK, clean[position])
        at += len(block.observed)
    assert at == len(rows.ids)


def test_masked_rows_weigh_one_over_the_ratio_of_their_block():
    example = Example(prompt=(5,), answer=(6, 7, 8, 9, EOS))
    blocks = [Block(start=1, observed=(True, False, True, True)), Block(start=5, observed=(False,))]
    weights = LossWeights(masked=0.5)
    rows = dual_stream(example, blocks, eos=EOS, mask=MASK, weights=weights)
    assert rows.weight[6:] == (0.0, 0.0, 0.0, 0.5 * 4, 0.5 * 1)


def test_memory_rows_predict_the_next_token_with_the_weight_of_what_it_is():
    example = Example(prompt=(5, 6, 7), answer=(8, 9, EOS))
    weights = LossWeights(prompt=0.25, answer=1.0, end=3.0)
    rows = dual_stream(example, [], eos=EOS, mask=MASK, weights=weights)
    assert rows.target == (6, 7, 8, 9, EOS, IGNORE)
    assert rows.weight == (0.25, 0.25, 1.0, 1.0, 3.0, 0.0)


def test_whole_masked_blocks_come_with_the_configured_share():
    config = MaskingConfig(block_sizes=(16,), full_share=0.7)
    rng = random.Random(0)
    blocks = [b for _ in range(400) for b in plan_blocks(rng, 0, 80, config) if len(b.observed) == 16]
    share = sum(not any(b.observed) for b in blocks) / len(blocks)
    # A partial draw masks all 16 with probability 1/16.
    assert abs(share - (0.7 + 0.3 / 16)) < 0.03
