"""The dual-stream attention pattern: the vectorised form equals the definition, and its consequences hold."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wedlm_core.config import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.training.batches import Batch, pack
from wedlm_core.training.examples import Example
from wedlm_core.training.loss import MaskedAttend, dual_stream_mask
from wedlm_core.training.masking import Block, LossWeights, MaskingConfig, StreamRows, dual_stream, plan_blocks

EOS, MASK, PAD = 1, 2, 0
CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=64, mask_token_id=MASK,
)  # fmt: skip


def random_batch(seed: int, rows: int = 2, length: int = 40) -> Batch:
    rng = random.Random(seed)

    lines: list[list[StreamRows]] = [[] for _ in range(rows)]
    for line in lines:
        left = length
        while left > 0:
            prompt = tuple(rng.randrange(3, 64) for _ in range(rng.randint(1, 5)))
            answer = (*(rng.randrange(3, 64) for _ in range(rng.randint(1, 9))), EOS)
            masking = MaskingConfig(block_sizes=(rng.choice((1, 3, 8)),), full_share=rng.random())
            blocks = plan_blocks(rng, len(prompt), len(answer) + rng.randint(0, 3), masking)
            example = Example(prompt=prompt, answer=answer)
            document = dual_stream(example, blocks, eos=EOS, mask=MASK, weights=LossWeights())
            left -= len(document.ids)
            line += [document] if left >= 0 else []
    return pack(lines, length, PAD)


def oracle_mask(document_T: Tensor, position_T: Tensor, limit_T: Tensor, block_T: Tensor) -> Tensor:
    """The attention mask by its definition, one pair at a time: bool ``[T, T]``, where row q attends to row k."""
    rows = len(document_T)
    sees_TT = torch.zeros(rows, rows, dtype=torch.bool)
    for q in range(rows):
        sees_TT[q, q] = True
        for k in range(rows):
            if document_T[q] < 0 or document_T[q] != document_T[k]:
                continue
            memory_q, memory_k = bool(block_T[q] == 0), bool(block_T[k] == 0)
            if memory_q and memory_k:
                sees_TT[q, k] = bool(position_T[k] <= position_T[q])
            elif memory_k:
                sees_TT[q, k] = bool(position_T[k] < limit_T[q])
            elif not memory_q:
                sees_TT[q, k] = bool(block_T[k] == block_T[q]) and k <= q
    return sees_TT


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_fast_mask_equals_the_definition(seed):
    batch = random_batch(seed)
    fast = dual_stream_mask(batch.document, batch.positions, batch.limit, batch.block)
    for row in range(batch.ids.shape[0]):
        slow = oracle_mask(batch.document[row], batch.positions[row], batch.limit[row], batch.block[row])
        assert torch.equal(fast[row, 0], slow)


def eager_attention(mask):
    def attend(layer, q, k, v):
        groups = q.shape[-2] // k.shape[-2]
        k, v = k.repeat_interleave(groups, -2), v.repeat_interleave(groups, -2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~mask, float("-inf")).softmax(-1), v)

    return attend


def test_attention_and_its_gradients_equal_plain_softmax_under_the_oracle():
    batch = random_batch(7)
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    fast = dual_stream_mask(batch.document, batch.positions, batch.limit, batch.block)
    slow = torch.stack([
        oracle_mask(batch.document[b], batch.positions[b], batch.limit[b], batch.block[b]) for b in range(2)
    ])[:, None]  # fmt: skip
    found = []
    for attend in (MaskedAttend(fast), eager_attention(slow)):
        hidden = model(batch.ids, batch.positions, attend)
        gradients = torch.autograd.grad(hidden.square().sum(), list(model.parameters()), allow_unused=True)
        found.append([hidden, *(g for g in gradients if g is not None)])
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)


def test_a_document_is_computed_alike_alone_and_packed():
    batch = random_batch(3, rows=1, length=60)
    torch.manual_seed(1)
    model = Decoder(CONFIG)

    def run(keep):
        sub = {name: tensor[:, keep] for name, tensor in vars(batch).items()}
        mask = dual_stream_mask(sub["document"], sub["positions"], sub["limit"], sub["block"])
        return model(sub["ids"], sub["positions"], MaskedAttend(mask))

    whole = run(torch.ones(60, dtype=torch.bool))
    assert int(batch.document.max()) >= 1
    for document in range(int(batch.document.max()) + 1):
        keep = batch.document[0] == document
        torch.testing.assert_close(run(keep), whole[:, keep], rtol=1e-4, atol=1e-5)


def test_a_clean_prefix_inside_a_block_is_computed_as_in_the_memory_stream():
    """Decoding can keep the KV of committed window rows because of this property."""
    example = Example(prompt=(5, 6, 7), answer=(8, 9, 10, 11, 12, EOS))
    blocks = [Block(start=4, observed=(True, True, True, False, False))]
    rows = dual_stream(example, blocks, eos=EOS, mask=MASK, weights=LossWeights())
    batch = pack([[rows]], len(rows.ids), PAD)
    torch.manual_seed(2)
    model = Decoder(CONFIG)
    mask = dual_stream_mask(batch.document, batch.positions, batch.limit, batch.block)
    hidden = model(batch.ids, batch.positions, MaskedAttend(mask))[0]
    memory = len(example.prompt) + len(example.answer)
    torch.testing.assert_close(hidden[memory : memory + 3], hidden[4:7], rtol=1e-4, atol=1e-5)
