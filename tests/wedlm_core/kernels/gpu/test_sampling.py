"""The fused sampler against ``choose``; on a machine without a GPU Triton's interpreter runs it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.random_bits import random_allowed
from wedlm_core.decoding.allowed_tokens import AllowedRows
from wedlm_core.decoding.noise import gumbel_noise
from wedlm_core.decoding.sampling import Choice, SamplingRows, choose
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.decoding.sampling_gpu import choose_gpu, chooser

triton = pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402

from wedlm_core.kernels.gpu.sampling import _gumbel, _hash, _row_key  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TILE = 16  # small, so that rows have several tiles


@triton.jit
def _noise_kernel(seed_ptr, position_ptr, noise_ptr, LIBM: tl.constexpr, VOCAB: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    token = tl.arange(0, VOCAB)
    key = _row_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
    tl.store(noise_ptr + row * VOCAB + token, _gumbel(_hash(key, token), LIBM))


@given(rows=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 200_000)), min_size=1, max_size=4))
@settings(max_examples=4, deadline=None)
def test_the_noise_is_the_packages(rows: list[tuple[int, int]]) -> None:
    seed, position = (torch.tensor(column, device=DEVICE) for column in zip(*rows, strict=True))
    noise = torch.empty(len(rows), 1024, device=DEVICE)
    _noise_kernel[(len(rows),)](seed, position, noise, LIBM=DEVICE.type == "cuda", VOCAB=1024)
    # The bits are the same; on a GPU so are the logarithms, in the interpreter they are another library's.
    exact = DEVICE.type == "cuda"
    torch.testing.assert_close(
        noise, gumbel_noise(seed, position, 1024), rtol=0 if exact else 1e-6, atol=0 if exact else 3e-7
    )


def sampling_rows(
    count: int, seed: int, *, suppressing: bool, filtering: bool = False, vocab: int | None = None
) -> SamplingRows:
    """Rows of every kind; with ``vocab``, some are restricted to the bits of a grammar."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.arange(count)
    temperature = torch.tensor([0.0, 0.3, 1.0, 2.5])[torch.randint(0, 4, (count,), generator=generator)]
    filtered = filtering & (row % 3 == 0)
    rows = SamplingRows(
        temperature_R=temperature,
        seed_R=torch.randint(0, 2**62, (count,), generator=generator),
        position_R=torch.randint(0, 40_000, (count,), generator=generator),
        suppress_R=(row % 2 == 0) & suppressing,
        sampled=bool((temperature > 0).any()),
        filters={"top_k": torch.where(filtered, 3, 0), "top_p": torch.where(filtered, 0.8, 1.0)} if filtering else {},
        allowed=None if vocab is None else random_allowed((row % 2 == 0) & suppressing, vocab, seed),
        suppressing=suppressing,
    )
    return move(rows)


def move(rows: SamplingRows) -> SamplingRows:
    tensors = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in vars(rows).items()}
    if rows.allowed is not None:
        tensors["allowed"] = AllowedRows(**{name: value.to(DEVICE) for name, value in vars(rows.allowed).items()})
    tensors["filters"] = {name: value.to(DEVICE) for name, value in rows.filters.items()}
    return SamplingRows(**tensors)


def assert_chosen_alike(got: Choice, want: Choice) -> None:
    assert torch.equal(got.token_R, want.token_R)
    torch.testing.assert_close(got.entropy_R, want.entropy_R, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.logprob_R, want.logprob_R, rtol=0, atol=1e-5)


@given(
    count=st.integers(1, 5),
    vocab=st.integers(4, 150),
    seed=st.integers(0, 2**31),
    suppressing=st.booleans(),
    filtering=st.booleans(),
    restricting=st.booleans(),
    coarse=st.booleans(),
    dead=st.sampled_from([0.0, 0.5, 0.97]),
    sharpness=st.sampled_from([0.0, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    splits=st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_it_chooses_as_the_oracle_whatever_the_split(
    count: int, vocab: int, seed: int, suppressing: bool, filtering: bool, restricting: bool, coarse: bool, dead: float,
    sharpness: float, dtype: torch.dtype, splits: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab, generator=generator) * sharpness
    if coarse:  # multiples of 2 tie often
        logits = (logits / 2).round() * 2
    logits[torch.rand(count, vocab, generator=generator) < dead] = -torch.inf
    logits[:, 0] = logits[:, 0].clamp_min(-9.0)  # a row with nothing to choose from has no right answer
    logits = logits.to(dtype).to(DEVICE)
    rows = sampling_rows(
        count, seed, suppressing=suppressing, filtering=filtering, vocab=vocab if restricting else None
    )
    limits = {"mask_token_id": 1, "vocab_limit": vocab - 2}
    kept = logits.clone()
    got = choose_gpu(logits, rows, **limits, splits=splits, tile=TILE)
    assert torch.equal(logits, kept), "the logits are left alone"
    assert_chosen_alike(got, choose(logits.clone(), rows, **limits))
    once = choose_gpu(logits, rows, **limits, splits=1, tile=TILE)
    for name in ("token_R", "entropy_R", "logprob_R"):
        assert torch.equal(getattr(once, name), getattr(got, name)), "the split changes no bit"
    i = seed % count  # and it knows nothing of the other rows
    alone = choose_gpu(logits[i : i + 1], rows.take(torch.tensor([i], device=DEVICE)), **limits, tile=TILE)
    for name in ("token_R", "entropy_R", "logprob_R"):
        assert torch.equal(getattr(alone, name)[0], getattr(got, name)[i])


def test_a_large_vocabulary_at_every_temperature() -> None:
    """Enough tokens and tiles that most tiles end before their logarithms."""
    vocab = 20_011
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(5), device="cpu").mul(3).to(DEVICE)
    rows = sampling_rows(8, 3, suppressing=True)
    limits = {"mask_token_id": 7, "vocab_limit": vocab - 11}
    assert set(rows.temperature_R.tolist()) >= {0.0, 1.0}
    assert_chosen_alike(choose_gpu(logits, rows, **limits), choose(logits, rows, **limits))


def test_no_rows_and_rows_that_are_not_contiguous() -> None:
    wide = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    limits = {"mask_token_id": 1, "vocab_limit": 40}
    rows = sampling_rows(6, 9, suppressing=False)
    assert_chosen_alike(choose_gpu(wide.t(), rows, **limits), choose(wide.t(), rows, **limits))
    none = rows.take(torch.zeros(0, dtype=torch.int64, device=DEVICE))
    assert choose_gpu(wide.t()[:0], none, **limits).token_R.shape == (0,)


def test_which_form_serves_which_device() -> None:
    assert chooser(torch.device("cpu"), cpu_kernels=True) is choose_cpu
    assert chooser(torch.device("cpu")) is choose
    assert chooser(torch.device("cuda")) is choose_gpu
