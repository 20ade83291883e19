"""The fused sampler at the size of a real vocabulary, compiled."""

from __future__ import annotations

import pytest
import torch

from testing.engine.sampling_oracle import choose
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_gpu import choose_gpu

pytestmark = pytest.mark.gpu  # compiled Triton kernels run on a CUDA device only

VOCAB, MASK, LIMIT = 151_936, 151_665, 151_669


def some_rows(count: int, temperature: list[float], *, suppressing: bool) -> SamplingRows:
    generator = torch.Generator(device="cuda").manual_seed(count)
    heat = torch.tensor(temperature, device="cuda").repeat(-(-count // len(temperature)))[:count]
    return SamplingRows(
        temperature_R=heat,
        seed_R=torch.randint(0, 2**62, (count,), generator=generator, device="cuda"),
        position_R=torch.arange(count, device="cuda"),
        suppress_R=(torch.arange(count, device="cuda") % 2 == 0) & suppressing,
        sampled=max(temperature) > 0,
        suppressing=suppressing,
    )


def exact(logits: torch.Tensor, rows: SamplingRows, token_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy and log-probability as ``Choice`` defines them, in float64."""
    wide = logits.double()
    token = torch.arange(VOCAB, device="cuda")
    hidden = rows.suppress_R[:, None] & ((token == MASK) | (token >= LIMIT))
    wide = wide.masked_fill(hidden, -torch.inf)
    logprob_R = wide.log_softmax(-1).gather(-1, token_R[:, None]).squeeze(-1)
    own = rows.suppress_R & (rows.temperature_R > 0)
    log = (wide / torch.where(own, rows.temperature_R, 1.0)[:, None]).log_softmax(-1)
    return -(log.exp() * log.clamp_min(-1e30)).sum(-1), logprob_R


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 3, 64, 257])
@pytest.mark.parametrize("temperature", [[0.0], [1.0], [0.0, 0.3, 1.0]])
@pytest.mark.parametrize("suppressing", [False, True])
def test_it_chooses_as_the_oracle(dtype: torch.dtype, count: int, temperature: list[float], suppressing: bool) -> None:
    generator = torch.Generator(device="cuda").manual_seed(11)
    spread = torch.rand(count, 1, generator=generator, device="cuda") * 5
    logits = (torch.randn(count, VOCAB, generator=generator, device="cuda") * spread).to(dtype)
    rows = some_rows(count, temperature, suppressing=suppressing)
    got = choose_gpu(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    want = choose(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    assert torch.equal(got.token_R, want.token_R)
    # Against float64: over so many tokens the oracle's own sums in float32 are up to 5e-5 off.
    entropy_R, logprob_R = exact(logits, rows, got.token_R)
    torch.testing.assert_close(got.entropy_R.double(), entropy_R, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.logprob_R.double(), logprob_R, rtol=0, atol=1e-5)
    alone = choose_gpu(logits[:1], rows.take(torch.tensor([0], device="cuda")), mask_token_id=MASK, vocab_limit=LIMIT)
    for name in ("token_R", "entropy_R", "logprob_R"):
        assert torch.equal(getattr(alone, name)[0], getattr(got, name)[0]), "a row does not know of the others"


def test_nothing_waits_for_the_device() -> None:
    logits = torch.randn(16, VOCAB, device="cuda")
    rows = some_rows(16, [0.0, 1.0], suppressing=True)
    choose_gpu(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)  # compiles
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        choose_gpu(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_a_graph_replays_it() -> None:
    logits = torch.randn(8, VOCAB, device="cuda", dtype=torch.bfloat16)
    rows = some_rows(8, [0.0, 1.0], suppressing=False)
    choose_gpu(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        choice = choose_gpu(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    logits.copy_(torch.randn(8, VOCAB, device="cuda"))
    graph.replay()
    want = choose(logits, rows, mask_token_id=MASK, vocab_limit=LIMIT)
    assert torch.equal(choice.token_R, want.token_R)
